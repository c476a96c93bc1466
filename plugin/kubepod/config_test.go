package kubepod_test

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin/kubepod"
	"github.com/meshcni/meshcni/plugin/plugintest"
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
	server := plugintest.NewAPIServer(t)
	server.SetPod(testPod())
	inlineCA := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(server.CA())
	byName := strings.Replace(server.URL(), "127.0.0.1", "localhost", 1)
	cases := map[string]struct{ cluster, user string }{
		"inline":          {"server: " + server.URL() + "\n" + inlineCA, "token: " + server.Token()},
		"relative files":  {"server: " + server.URL() + "\ncertificate-authority: ca.pem", "tokenFile: token"},
		"insecure":        {"server: " + server.URL() + "\ninsecure-skip-tls-verify: true", "token: " + server.Token()},
		"tls server name": {"server: " + server.URL() + "\ntls-server-name: localhost\n" + inlineCA, "token: " + server.Token()},
		"host name":       {"server: " + byName + "\n" + inlineCA, "token: " + server.Token()},
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
	server := plugintest.NewAPIServer(t)
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
