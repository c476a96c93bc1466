package kubepod_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

// writeConfig writes a kubeconfig of one cluster and one user, each a line of YAML or several.
func writeConfig(t testing.TB, cluster, user string) string {
	t.Helper()
	indent := func(s string) string { return strings.ReplaceAll(s, "\n", "\n    ") }
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: c
  cluster:
    %s
users:
- name: u
  user:
    %s
contexts:
- name: x
  context: {cluster: c, user: u}
current-context: x
`, indent(cluster), indent(user)), 0o600))
	return path
}

// silentListener accepts connections and says nothing; accepted is closed at the first.
func silentListener(t testing.TB) (addr string, accepted <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	first, ended, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		close(first)
		<-ended
		_ = conn.Close()
	}()
	t.Cleanup(func() { close(ended); _ = listener.Close(); <-done })
	return listener.Addr().String(), first
}

// What standard kubeconfigs say in other ways than the installer's own.
func TestKubeconfigForms(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(testPod())
	inlineCA := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(server.CA())
	byName := strings.Replace(server.URL(), "127.0.0.1", "localhost", 1)
	cases := map[string]struct{ cluster, user string }{
		"inline":          {"server: " + server.URL() + "\n" + inlineCA, "token: " + server.Token()},
		"relative files":  {"server: " + server.URL() + "\ncertificate-authority: ca.pem", "tokenFile: token"},
		"insecure":        {"server: " + server.URL() + "\ninsecure-skip-tls-verify: true", "token: " + server.Token()},
		"tls server name": {"server: " + server.URL() + "\ntls-server-name: localhost\n" + inlineCA, "token: " + server.Token()},
		"host name":       {"server: " + byName + "\n" + inlineCA, "token: " + server.Token()},
		"no scheme":       {"server: " + strings.TrimPrefix(server.URL(), "https://") + "\n" + inlineCA, "token: " + server.Token()},
		"trailing slash":  {"server: " + server.URL() + "/\n" + inlineCA, "token: " + server.Token()},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := writeConfig(t, c.cluster, c.user)
			dir := filepath.Dir(path)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.pem"), server.CA(), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(server.Token()+"\n"), 0o600))
			client, err := kubepod.Open(path)
			require.NoError(t, err)
			defer client.Close()
			_, err = client.Pod(t.Context(), "default", "web-0")
			require.NoError(t, err)
		})
	}
}

// The runtime's environment must not lend a plugin another cluster's credentials.
func TestKubeconfigHasNoFallback(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	good, err := server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	t.Setenv("KUBECONFIG", good)
	t.Setenv("KUBERNETES_MASTER", server.URL())
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	for _, path := range []string{"", filepath.Join(t.TempDir(), "absent")} {
		_, err := kubepod.Open(path)
		var config *kubepod.ConfigError
		require.ErrorAs(t, err, &config)
		assert.Equal(t, path, config.Path)
	}
}

func TestBadKubeconfigs(t *testing.T) {
	server := "server: https://127.0.0.1:1"
	cases := map[string]struct{ content, cluster, user, want string }{
		"empty file":        {content: "\n", want: "no configuration"},
		"not yaml":          {content: "{{{", want: "yaml"},
		"another kind":      {content: "apiVersion: v1\nkind: Pod\n", want: "Pod"},
		"no context":        {content: "apiVersion: v1\nkind: Config\n", want: "no configuration"},
		"missing context":   {content: "apiVersion: v1\nkind: Config\ncurrent-context: gone\n", want: "specified context: gone"},
		"no server":         {cluster: "tls-server-name: x", user: "token: t", want: "no server found"},
		"server is garbage": {cluster: "server: 'https://a b'", user: "token: t", want: "a b"},
		"garbage CA":        {cluster: server + "\ncertificate-authority-data: Z2FyYmFnZQ==", user: "token: t", want: "certificate"},
		"CA file missing":   {cluster: server + "\ncertificate-authority: absent.pem", user: "token: t", want: "absent.pem"},
		"token file missing": {
			cluster: server, user: "tokenFile: absent-token", want: "absent-token",
		},
		"two tokens":        {cluster: server, user: "token: t\nusername: u", want: "only one is allowed"},
		"as nobody":         {cluster: server, user: "token: t\nas-groups: [g]", want: "as"},
		"CA twice":          {cluster: server + "\ncertificate-authority-data: Z2FyYmFnZQ==\ncertificate-authority: ca.pem", user: "token: t", want: "too"},
		"CA and insecure":   {cluster: server + "\ncertificate-authority-data: Z2FyYmFnZQ==\ninsecure-skip-tls-verify: true", user: "token: t", want: "insecure"},
		"half a pair":       {cluster: server, user: "client-certificate-data: Z2FyYmFnZQ==", want: "certificate"},
		"another scheme":    {cluster: "server: ftp://127.0.0.1", user: "token: t", want: "ftp"},
		"proxy's scheme":    {cluster: server + "\nproxy-url: ftp://127.0.0.1", user: "token: t", want: "proxy-url"},
		"ambiguous context": {content: "contexts: [{name: x}, {name: x}]\ncurrent-context: x\n", want: "specified context: x"},
		"no user":           {content: "contexts: [{name: x, context: {user: u}}]\ncurrent-context: x\n", want: "specified user: u"},
		"exec": {
			cluster: server, user: "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, interactiveMode: Never}", want: "credential helper",
		},
		"auth provider": {cluster: server, user: "auth-provider: {name: oidc}", want: "credential helper"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if c.content != "" {
				require.NoError(t, os.WriteFile(path, []byte(c.content), 0o600))
			} else {
				path = writeConfig(t, c.cluster, c.user)
			}
			_, err := kubepod.Open(path)
			var config *kubepod.ConfigError
			require.ErrorAs(t, err, &config)
			assert.Equal(t, path, config.Path)
			assert.ErrorContains(t, err, c.want)
			assert.False(t, kubepod.Transient(err))
		})
	}
}

// TestWhoAsks: each way of saying it reaches the server, a token's file as it is at the time of the request.
func TestWhoAsks(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(testPod())
	var got http.Header
	server.Handle(func(_ int, _ http.ResponseWriter, r *http.Request) bool { got = r.Header.Clone(); return false })
	cluster := "server: " + server.URL() + "\ninsecure-skip-tls-verify: true"
	for name, c := range map[string]struct {
		user string
		want http.Header
	}{
		"token":      {"token: t", http.Header{"Authorization": {"Bearer t"}}},
		"token file": {"token: old\ntokenFile: token", http.Header{"Authorization": {"Bearer new"}}},
		"password":   {"username: u\npassword: p", http.Header{"Authorization": {"Basic dTpw"}}},
		"as another": {"token: t\nas: a\nas-uid: 1\nas-groups: [g, h]\nas-user-extra: {scopes/x: [some]}", http.Header{
			"Authorization": {"Bearer t"}, "Impersonate-User": {"a"}, "Impersonate-Uid": {"1"}, "Impersonate-Group": {"g", "h"},
			"Impersonate-Extra-Scopes%2fx": {"some"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeConfig(t, cluster, strings.ReplaceAll(c.user, "as-uid: 1", `as-uid: "1"`))
			token := filepath.Join(filepath.Dir(path), "token")
			require.NoError(t, os.WriteFile(token, []byte("first"), 0o600))
			client, err := kubepod.Open(path)
			require.NoError(t, err)
			defer client.Close()
			require.NoError(t, os.WriteFile(token, []byte("new\n"), 0o600))
			_, err = client.Pod(t.Context(), "default", "web-0")
			require.True(t, apierrors.IsUnauthorized(err), err)
			for _, other := range []string{"Accept", "User-Agent"} {
				got.Del(other)
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// TestClientCertificate: a server that wants one gets it, from the kubeconfig or from files.
func TestClientCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7)}, &x509.Certificate{SerialNumber: big.NewInt(7)}, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certPEM, keyPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	var serial *big.Int
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serial = r.TLS.PeerCertificates[0].SerialNumber
		_, _ = io.WriteString(w, `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "prod"}}`)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	for _, user := range []string{
		"client-certificate: cert.pem\nclient-key: key.pem",
		"client-certificate-data: " + base64.StdEncoding.EncodeToString(certPEM) + "\nclient-key-data: " + base64.StdEncoding.EncodeToString(keyPEM),
	} {
		path := writeConfig(t, "server: "+server.URL+"\ninsecure-skip-tls-verify: true", user)
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "cert.pem"), certPEM, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "key.pem"), keyPEM, 0o600))
		client, err := kubepod.Open(path)
		require.NoError(t, err)
		serial = nil
		_, err = client.Namespace(t.Context(), "prod")
		require.NoError(t, err)
		assert.Equal(t, big.NewInt(7), serial)
		client.Close()
	}
}
