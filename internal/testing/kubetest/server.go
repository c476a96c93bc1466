// Package kubetest runs a real API server with its own etcd for tests: with RBAC and admission, an audit log that tells
// who asked for what, and certificates and tokens for any user. There is nothing else of a cluster: no controllers, no
// scheduler, no kubelet.
//
// repair/integration/setup.sh installs the two programs; [Servers] is the need for them. A package's tests share one
// server through [Main] and [Shared], take turns with servers of [Lend], or start their own with [Own].
package kubetest

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// AdminToken is the bearer token of user admin in group system:masters, who may do everything.
const AdminToken = "kubetest-admin"

// Component returns the path of a Kubernetes program that .ci/kube leaves in the project's cache (MESHCNI_CACHE, default
// .cache), in version KUBE_VERSION (default v1.36.3), or an error if it is missing.
func Component(name string) (string, error) {
	version := os.Getenv("KUBE_VERSION")
	if version == "" {
		version = "v1.36.3"
	}
	path, err := filepath.Abs(proctest.Cache("bin", name+"-"+version))
	if err != nil {
		return "", err
	}
	_, err = os.Stat(path)
	return path, err
}

// Components is the need for Kubernetes programs, such as kubelet.
func Components(names ...string) netnstest.Need {
	return netnstest.Need{Name: strings.Join(names, ", ") + " (run .ci/kube " + strings.Join(names, " ") + ")", Check: func() error {
		var errs []error
		for _, name := range names {
			_, err := Component(name)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}}
}

// Servers is the need for etcd and the API server.
var Servers = netnstest.Need{Name: "etcd and kube-apiserver (run repair/integration/setup.sh)", Check: func() error {
	_, errEtcd := exec.LookPath("etcd")
	_, errServer := Component("kube-apiserver")
	return errors.Join(errEtcd, errServer)
}}

// Options configures a server.
type Options struct {
	// Bind is the address that the API server listens on. Zero means 127.0.0.1.
	Bind netip.Addr
	// Advertise is the address that clients are given. Zero means 127.0.0.1.
	Advertise netip.Addr
	// Port is the API server's. Zero means a free one.
	Port int
	// EnableAdmission and DisableAdmission add to, and remove from, the admission plugins that are on by default. Plugin
	// ServiceAccount refuses pods until their service account exists, which no controller creates here.
	EnableAdmission, DisableAdmission []string
	// AuthorizationConfig is the file of an AuthorizationConfiguration. Empty means the authorizers Node and RBAC.
	AuthorizationConfig string
}

// serviceCIDR is where Services get their addresses, the API server's own first.
const serviceCIDR, serviceIP = "10.77.0.0/24", "10.77.0.1"

// Server is an API server with its own etcd.
type Server struct {
	o         Options
	dir       string
	binary    string
	etcdURL   string
	pki       *authority
	etcd, api *proctest.Process
	own       map[string]bool // the keys of the objects that it began with, for [Lend]
}

// Start starts etcd and the API server and waits until they are ready, which takes some seconds. It keeps data, logs and
// certificates in dir, an existing directory that the caller removes after [Server.Stop].
func Start(dir string, o Options) (s *Server, err error) {
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, a := range []*netip.Addr{&o.Bind, &o.Advertise} {
		if !a.IsValid() {
			*a = loopback
		}
	}
	var ports [3]int
	for i := range ports {
		if ports[i], err = proctest.FreePort(); err != nil {
			return nil, fmt.Errorf("start an API server: %w", err)
		}
	}
	if o.Port == 0 {
		o.Port = ports[0]
	}
	s = &Server{o: o, dir: dir, etcdURL: fmt.Sprintf("http://127.0.0.1:%d", ports[1])}
	if s.binary, err = Component("kube-apiserver"); err != nil {
		return nil, err
	}
	if err := s.writeFiles(); err != nil {
		return nil, fmt.Errorf("prepare an API server: %w", err)
	}
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	s.etcd, err = proctest.Start(proctest.Options{Dir: dir, Name: "etcd"}, "etcd",
		"--data-dir", s.File("etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", s.etcdURL, "--advertise-client-urls", s.etcdURL,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err == nil {
		err = s.etcd.WaitFor(patience, s.etcdReady)
	}
	if err == nil {
		err = s.StartAPI()
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// patience is how long a server may take until it is ready, on a busy machine with a slow disk.
const patience = 5 * time.Minute

// File returns the path of one of the server's files: apiserver.log, audit.log, etcd.log, pki/ca.crt, pki/sa.key and so
// on.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// CAFile returns the path of the certificate that signed the server's.
func (s *Server) CAFile() string { return s.File("pki/ca.crt") }

// auditPolicy excludes the test's own requests from the log.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
rules:
  - level: None
    userGroups: ["system:masters"]
  - level: Metadata
`

func (s *Server) writeFiles() (err error) {
	if s.pki, err = newAuthority(s.File("pki")); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"tokens.csv": AdminToken + ",admin,admin,system:masters\n",
		"audit.yaml": auditPolicy,
	} {
		err = errors.Join(err, os.WriteFile(s.File(name), []byte(content), 0o600))
	}
	return errors.Join(err,
		s.pki.issue("apiserver", "kube-apiserver", nil, "127.0.0.1", "::1", "localhost", s.o.Advertise.String(), serviceIP,
			"kubernetes", "kubernetes.default", "kubernetes.default.svc"),
		s.pki.issue("kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"}))
}

// etcdReady returns an error while etcd does not serve. The API server gives up 20 seconds after its own start if etcd does not answer
// by then, so it is started only afterwards.
func (s *Server) etcdReady() error {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	r, err := client.Get(s.etcdURL + "/health")
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s", r.Status)
	}
	return nil
}

// StartAPI starts the API server again after [Server.StopAPI] and waits until it is ready. One that ends by itself before is started
// again, twice at most, as a cluster's is: on a busy machine etcd may be too slow for it once.
func (s *Server) StartAPI() error {
	for again := 2; ; again-- {
		err := s.startAPI()
		if err == nil {
			err = s.api.WaitFor(patience, s.ready)
		}
		if err == nil || s.api == nil || s.api.Running() || again == 0 {
			return err
		}
		s.api.Kill() // reaps it
	}
}

func (s *Server) startAPI() (err error) {
	authorization := "--authorization-mode=Node,RBAC"
	if s.o.AuthorizationConfig != "" {
		authorization = "--authorization-config=" + s.o.AuthorizationConfig
	}
	s.api, err = proctest.Start(proctest.Options{Dir: s.dir, Name: "apiserver"}, s.binary,
		"--etcd-servers="+s.etcdURL,
		"--bind-address="+s.o.Bind.String(), "--advertise-address="+s.o.Advertise.String(), "--secure-port="+strconv.Itoa(s.o.Port),
		"--tls-cert-file="+s.File("pki/apiserver.crt"), "--tls-private-key-file="+s.File("pki/apiserver.key"),
		"--client-ca-file="+s.CAFile(), "--token-auth-file="+s.File("tokens.csv"), authorization,
		"--kubelet-client-certificate="+s.File("pki/kubelet-client.crt"), "--kubelet-client-key="+s.File("pki/kubelet-client.key"),
		"--kubelet-certificate-authority="+s.CAFile(), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+s.File("pki/sa.key"),
		"--service-account-signing-key-file="+s.File("pki/sa.key"), "--service-cluster-ip-range="+serviceCIDR,
		"--allow-privileged=true", "--endpoint-reconciler-type=none", "--profiling=false",
		"--audit-policy-file="+s.File("audit.yaml"), "--audit-log-path="+s.File("audit.log"), "--audit-log-mode=blocking",
		"--enable-admission-plugins="+strings.Join(s.o.EnableAdmission, ","),
		"--disable-admission-plugins="+strings.Join(s.o.DisableAdmission, ","))
	return err
}

func (s *Server) ready() error {
	a, err := s.admin(time.Second)
	if err != nil {
		return err
	}
	defer a.client.CloseIdleConnections()
	return a.Try(http.MethodGet, "/readyz", nil, nil)
}

// StopAPI kills the API server.
func (s *Server) StopAPI() {
	if s.api != nil {
		s.api.Kill()
	}
}

// Stop kills both servers.
func (s *Server) Stop() {
	s.StopAPI()
	if s.etcd != nil {
		s.etcd.Kill()
	}
}

// Address returns the address that clients are given.
func (s *Server) Address() netip.AddrPort {
	return netip.AddrPortFrom(s.o.Advertise, uint16(s.o.Port)) //nolint:gosec // a port
}

// URL returns https:// and [Server.Address].
func (s *Server) URL() string { return "https://" + s.Address().String() }

// Config returns the configuration of a client with a bearer token, such as [AdminToken]; empty means none. The client
// does not limit its requests.
func (s *Server) Config(token string) (*rest.Config, error) {
	ca, err := os.ReadFile(s.CAFile())
	return &rest.Config{
		Host: s.URL(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: 1000, Burst: 1000,
	}, err
}

// Kubeconfig writes a kubeconfig with a bearer token. It includes the certificate, and the test removes it.
func (s *Server) Kubeconfig(tb testing.TB, token string) string {
	tb.Helper()
	ca, err := os.ReadFile(s.CAFile())
	require.NoError(tb, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL(), CertificateAuthorityData: ca}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	require.NoError(tb, clientcmd.WriteToFile(*config, path))
	return path
}

// Certificate is [Server.Issue] for a test, which fails with it.
func (s *Server) Certificate(tb testing.TB, user string, groups []string, hosts ...string) (certFile, keyFile string) {
	tb.Helper()
	certFile, keyFile, err := s.Issue(user, groups, hosts...)
	require.NoError(tb, err)
	return certFile, keyFile
}

// Issue issues a certificate for a user of groups, with which a server can also serve on hosts (addresses and names). The files
// exist as long as the server's.
func (s *Server) Issue(user string, groups []string, hosts ...string) (certFile, keyFile string, err error) {
	dir, err := os.MkdirTemp(s.File("pki"), "issued-")
	if err != nil {
		return "", "", fmt.Errorf("certificate of %s: %w", user, err)
	}
	name := filepath.Join(filepath.Base(dir), "tls")
	if err := s.pki.issue(name, user, groups, hosts...); err != nil {
		return "", "", fmt.Errorf("certificate of %s: %w", user, err)
	}
	return s.pki.file(name + ".crt"), s.pki.file(name + ".key"), nil
}

// shared is the server of a package's tests.
var shared struct {
	once    sync.Once
	options Options
	server  *Server
	dir     string
	err     error
}

// Main is for a package's TestMain: it runs the tests and then stops their shared server and those of [Lend]. It returns the exit code.
func Main(m *testing.M, o Options) (code int) {
	shared.options = o
	defer func() {
		if shared.server != nil {
			shared.server.Stop()
		}
		if shared.dir != "" {
			_ = os.RemoveAll(shared.dir)
		}
		for _, s := range pool.free {
			s.discard()
		}
	}()
	return m.Run()
}

// Shared returns the server of all tests of a package that do not disrupt it. The first call starts it; [Main] stops it.
// It requires [Servers].
func Shared(tb testing.TB) *Server {
	tb.Helper()
	netnstest.Require(tb, Servers)
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "meshcni-kubetest"); shared.err == nil {
			shared.server, shared.err = Start(shared.dir, shared.options)
		}
	})
	require.NoError(tb, shared.err)
	return shared.server
}

// Own starts a server for one test. It requires [Servers].
func Own(tb testing.TB, o Options) *Server {
	tb.Helper()
	netnstest.Require(tb, Servers)
	s, err := Start(tb.TempDir(), o)
	require.NoError(tb, err)
	tb.Cleanup(s.Stop)
	return s
}
