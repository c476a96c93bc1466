// Package kubetest runs a real API server, with an etcd of its own, for tests:
// with RBAC and admission on, an audit log that tells who asked for what, and
// certificates and tokens for whoever shall ask.
//
// repair/integration/setup.sh gets the two programs; [Servers] is the need for
// them. A package's tests share one server by [Main] and [Shared], or have one of
// their own by [Start]. Nothing of a cluster besides runs unless its test starts
// it: no controllers, no scheduler, no kubelet.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// AdminToken is the bearer token of user admin of group system:masters, who may
// do everything.
const AdminToken = "kubetest-admin"

// Component is the path of a program of Kubernetes that .ci/kube leaves in the
// project's cache (MESHCNI_CACHE, else .cache), of the version KUBE_VERSION, else
// v1.36.3. The error says when it is not there.
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

// Components is the need for programs of Kubernetes by name, such as kubelet.
func Components(names ...string) netnstest.Need {
	return netnstest.Needing(strings.Join(names, ", ")+" (run .ci/kube "+strings.Join(names, " ")+")", func() error {
		var errs []error
		for _, name := range names {
			_, err := Component(name)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// Servers is the need for etcd and the API server.
var Servers = netnstest.Needing("etcd and kube-apiserver (run repair/integration/setup.sh)", func() error {
	_, errEtcd := exec.LookPath("etcd")
	_, errServer := Component("kube-apiserver")
	return errors.Join(errEtcd, errServer)
})

// Options are what may be different about a server. The zero Options make one on
// the loopback address of this network namespace, with the admission plugins that
// are on by default.
type Options struct {
	// NetNS is the path of a network namespace that the servers run in; "" is this
	// process's. Its loopback interface has to be up.
	NetNS string
	// Bind is where the API server listens; the zero address is 127.0.0.1.
	Bind netip.Addr
	// Advertise is the address that clients are given; the zero address is Bind, and
	// where that is unspecified too, 127.0.0.1.
	Advertise netip.Addr
	// Port is the API server's; 0 is a free one.
	Port int
	// Hosts are more addresses and names that its certificate is good for, besides
	// loopback, Advertise, the first of ServiceCIDR and kubernetes.default.svc.
	Hosts []string
	// ServiceCIDR is where Services get their addresses; the zero prefix is
	// 10.77.0.0/24.
	ServiceCIDR netip.Prefix
	// EnableAdmission and DisableAdmission name admission plugins besides, and of,
	// those that are on by default. Plugin ServiceAccount refuses pods until a
	// controller, or the test, has made their service account.
	EnableAdmission, DisableAdmission []string
	// Args are more flags of the API server.
	Args []string
}

func (o Options) withDefaults() (Options, error) {
	loopback := netip.MustParseAddr("127.0.0.1")
	if !o.Bind.IsValid() {
		o.Bind = loopback
	}
	if !o.Advertise.IsValid() {
		o.Advertise = o.Bind
		if o.Bind.IsUnspecified() {
			o.Advertise = loopback
		}
	}
	if !o.ServiceCIDR.IsValid() {
		o.ServiceCIDR = netip.MustParsePrefix("10.77.0.0/24")
	}
	if o.Port != 0 {
		return o, nil
	}
	var err error
	o.Port, err = o.freePort()
	return o, err
}

// freePort is a free port of the namespace's loopback address.
func (o Options) freePort() (port int, err error) {
	errIn := o.inside(func() error {
		port, err = proctest.FreePort()
		return err
	})
	return port, errIn
}

// inside calls fn in the servers' network namespace.
func (o Options) inside(fn func() error) error {
	if o.NetNS == "" {
		return fn()
	}
	ns, err := netnsexec.Open(o.NetNS)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return ns.Do(fn)
}

// Server is an API server with an etcd of its own.
type Server struct {
	o         Options
	dir       string
	binary    string
	etcdPort  int
	pki       *authority
	etcd, api *proctest.Process
}

// Start starts etcd and the API server and waits until it is ready, some seconds.
// Data, logs and certificates are in dir, which must be there and is the caller's
// to remove, after [Server.Stop].
func Start(dir string, o Options) (s *Server, err error) {
	s = &Server{dir: dir}
	if s.binary, err = Component("kube-apiserver"); err != nil {
		return nil, err
	}
	if s.o, err = o.withDefaults(); err != nil {
		return nil, fmt.Errorf("start an API server: %w", err)
	}
	var peerPort int
	if s.etcdPort, err = s.o.freePort(); err == nil {
		peerPort, err = s.o.freePort()
	}
	if err == nil {
		err = s.writeFiles()
	}
	if err != nil {
		return nil, fmt.Errorf("prepare an API server: %w", err)
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", s.etcdPort), fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	s.etcd, err = proctest.Start(proctest.Options{Dir: dir, Name: "etcd", NetNS: s.o.NetNS}, "etcd",
		"--data-dir", s.File("etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err == nil {
		err = s.StartAPI()
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// File is the path of a file of the server's: apiserver.log, audit.log, etcd.log,
// pki/ca.crt, pki/sa.key and so on.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// auditPolicy keeps the test's own requests out of the log, which is then what
// the parts under test asked for.
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
	if err := s.pki.serviceAccountKeys(); err != nil {
		return err
	}
	hosts := append([]string{
		"127.0.0.1", "::1", "localhost", s.o.Advertise.String(), s.o.ServiceCIDR.Masked().Addr().Next().String(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc",
	}, s.o.Hosts...)
	if _, _, err := s.pki.issue("apiserver", "kube-apiserver", nil, hosts); err != nil {
		return err
	}
	if _, _, err := s.pki.issue("kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"}, nil); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"tokens.csv": AdminToken + ",admin,admin,system:masters\n",
		"audit.yaml": auditPolicy,
	} {
		if err := os.WriteFile(s.File(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// StartAPI starts the API server again after [Server.StopAPI] and waits until it
// is ready.
func (s *Server) StartAPI() error {
	args := []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", s.etcdPort),
		"--bind-address=" + s.o.Bind.String(), "--advertise-address=" + s.o.Advertise.String(), "--secure-port=" + strconv.Itoa(s.o.Port),
		"--tls-cert-file=" + s.File("pki/apiserver.crt"), "--tls-private-key-file=" + s.File("pki/apiserver.key"),
		"--client-ca-file=" + s.CAFile(), "--token-auth-file=" + s.File("tokens.csv"), "--authorization-mode=Node,RBAC",
		"--kubelet-client-certificate=" + s.File("pki/kubelet-client.crt"), "--kubelet-client-key=" + s.File("pki/kubelet-client.key"),
		"--kubelet-certificate-authority=" + s.CAFile(), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + s.File("pki/sa.pub"),
		"--service-account-signing-key-file=" + s.File("pki/sa.key"), "--service-cluster-ip-range=" + s.o.ServiceCIDR.String(),
		"--allow-privileged=true", "--endpoint-reconciler-type=none", "--profiling=false",
		"--audit-policy-file=" + s.File("audit.yaml"), "--audit-log-path=" + s.File("audit.log"), "--audit-log-mode=blocking",
	}
	if len(s.o.EnableAdmission) > 0 {
		args = append(args, "--enable-admission-plugins="+strings.Join(s.o.EnableAdmission, ","))
	}
	if len(s.o.DisableAdmission) > 0 {
		args = append(args, "--disable-admission-plugins="+strings.Join(s.o.DisableAdmission, ","))
	}
	var err error
	s.api, err = proctest.Start(proctest.Options{Dir: s.dir, Name: "apiserver", NetNS: s.o.NetNS}, s.binary, append(args, s.o.Args...)...)
	if err != nil {
		return err
	}
	return s.api.WaitFor(2*time.Minute, s.ready)
}

func (s *Server) ready() error {
	config, err := s.Config(AdminToken)
	if err != nil {
		return err
	}
	config.Timeout = time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// Address is where clients find the API server, in its network namespace.
func (s *Server) Address() netip.AddrPort {
	return netip.AddrPortFrom(s.o.Advertise, uint16(s.o.Port)) //nolint:gosec // a port
}

// URL is https:// and [Server.Address].
func (s *Server) URL() string { return "https://" + s.Address().String() }

// APIPid is the process id of the API server.
func (s *Server) APIPid() int { return s.api.Pid() }

// StopAPI ends the API server as a crash does.
func (s *Server) StopAPI() {
	if s.api != nil {
		s.api.Kill()
	}
}

// Stop ends both servers.
func (s *Server) Stop() {
	s.StopAPI()
	if s.etcd != nil {
		s.etcd.Kill()
	}
}

// dial connects to an address from the servers' network namespace, wherever the
// caller is.
func (s *Server) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	errIn := s.o.inside(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, errIn
}
