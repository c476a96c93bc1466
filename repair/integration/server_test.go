package integration

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// adminToken is the bearer token of a user of group system:masters.
const adminToken = "integration-admin"

// apiserver is where setup.sh leaves the binary.
func apiserver() (string, error) {
	version := os.Getenv("KUBE_VERSION")
	if version == "" {
		version = "v1.36.3"
	}
	cache := os.Getenv("MESHCNI_CACHE")
	if cache == "" {
		cache = filepath.Join("..", "..", ".cache")
	}
	path, err := filepath.Abs(filepath.Join(cache, "bin", "kube-apiserver-"+version))
	if err != nil {
		return "", err
	}
	_, err = os.Stat(path)
	return path, err
}

// Servers is the need for etcd and the API server.
var Servers = netnstest.Needing("etcd and kube-apiserver (run repair/integration/setup.sh)", func() error {
	_, errEtcd := exec.LookPath("etcd")
	_, errServer := apiserver()
	return errors.Join(errEtcd, errServer)
})

// server is an API server with an etcd of its own.
type server struct {
	dir, binary     string
	port, etcd      int
	etcdCmd, apiCmd *exec.Cmd
	apiEnded        chan error // gets the end of apiCmd, then is closed
}

var (
	sharedOnce   sync.Once
	sharedServer *server
	errShared    error
	sharedDir    string
)

func TestMain(m *testing.M) {
	code := m.Run()
	if sharedServer != nil {
		sharedServer.stop()
	}
	if sharedDir != "" {
		_ = os.RemoveAll(sharedDir)
	}
	os.Exit(code)
}

// shared returns the API server of all tests that do not harm it.
func shared(t testing.TB) *server {
	t.Helper()
	netnstest.Require(t, Servers)
	sharedOnce.Do(func() {
		if sharedDir, errShared = os.MkdirTemp("", "meshcni-integration"); errShared == nil {
			sharedServer, errShared = startServer(sharedDir)
		}
	})
	require.NoError(t, errShared)
	return sharedServer
}

// own returns an API server for one test.
func own(t testing.TB) *server {
	t.Helper()
	netnstest.Require(t, Servers)
	s, err := startServer(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(s.stop)
	return s
}

func startServer(dir string) (*server, error) {
	binary, err := apiserver()
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, binary: binary}
	var ports [3]int
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	s.port, s.etcd = ports[0], ports[1]
	if err := s.writeFiles(); err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", s.etcd), fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	s.etcdCmd, err = s.launch("etcd", "etcd", "--data-dir", s.file("etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err == nil {
		err = s.startAPI()
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// freePort asks the kernel for a port that nobody uses now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *server) file(name string) string { return filepath.Join(s.dir, name) }

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
rules:
  - level: None
    userGroups: ["system:masters"]
  - level: Metadata
`

func (s *server) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"sa.key":     private,
		"sa.pub":     pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		"tokens.csv": []byte(adminToken + ",admin,admin,system:masters\n"),
		"audit.yaml": []byte(auditPolicy),
	} {
		if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// launch starts a process in our process group, so that an interrupt ends it too.
func (s *server) launch(name, binary string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(s.file(name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return cmd, nil
}

// startAPI starts the API server and waits until it is ready.
func (s *server) startAPI() (err error) {
	s.apiCmd, err = s.launch("apiserver", s.binary,
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", s.etcd),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port), "--cert-dir="+s.file("pki"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+s.file("sa.pub"),
		"--service-account-signing-key-file="+s.file("sa.key"), "--service-cluster-ip-range=10.77.0.0/24",
		"--token-auth-file="+s.file("tokens.csv"), "--authorization-mode=Node,RBAC", "--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none", "--profiling=false",
		"--audit-policy-file="+s.file("audit.yaml"), "--audit-log-path="+s.file("audit.log"), "--audit-log-mode=blocking")
	if err != nil {
		return err
	}
	died := make(chan error, 1)
	cmd := s.apiCmd
	go func() {
		died <- cmd.Wait()
		close(died)
	}()
	s.apiEnded = died
	deadline := time.After(2 * time.Minute)
	for {
		if s.ready() {
			return nil
		}
		select {
		case err := <-died:
			log, _ := os.ReadFile(s.file("apiserver.log"))
			return fmt.Errorf("API server ended: %w\n%s", err, log[max(0, len(log)-2000):])
		case <-deadline:
			return errors.New("API server is not ready in time")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) ready() bool {
	config, err := s.config(adminToken)
	if err != nil {
		return false
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return false
	}
	client.Timeout = time.Second
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK
}

// config returns how to reach the server with a token.
func (s *server) config(token string) (*rest.Config, error) {
	ca, err := os.ReadFile(filepath.Join(s.file("pki"), "apiserver.crt"))
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS: 1000, Burst: 1000,
	}, nil
}

// stopAPI ends the API server as a crash does.
func (s *server) stopAPI() {
	kill(s.apiCmd)
	if s.apiEnded != nil {
		for range s.apiEnded { // until it is closed
		}
	}
}

func (s *server) stop() {
	s.stopAPI()
	kill(s.etcdCmd)
	if s.etcdCmd != nil {
		_ = s.etcdCmd.Wait()
	}
}

func kill(cmd *exec.Cmd) {
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Kill()
	}
}

// rss is the resident memory of a process in MB.
func rss(t testing.TB, pid int) (now, peak float64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	return kilobytes(string(status), "VmRSS:") / 1024, kilobytes(string(status), "VmHWM:") / 1024
}
