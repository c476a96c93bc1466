package apiservertest_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func TestAPIServerAnswersAsARealOne(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}})
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(server.CA()))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	cases := []struct {
		method, path, token, accept string
		code                        int
		contentType, contains       string
	}{
		{"GET", "/api/v1/namespaces/a/pods/b", "plugintest-token", "", 200, "application/json", `"kind":"Pod"`},
		{"GET", "/api/v1/namespaces/a/pods/b", "plugintest-token", "application/vnd.kubernetes.protobuf,application/json", 200, "application/vnd.kubernetes.protobuf", "k8s\x00"},
		{"GET", "/api/v1/namespaces/a", "plugintest-token", "", 200, "application/json", `"kind":"Namespace"`},
		{"GET", "/api/v1/namespaces/z", "plugintest-token", "", 404, "application/json", `"reason":"NotFound"`},
		{"GET", "/api/v1/namespaces/a/pods", "plugintest-token", "", 404, "application/json", `"reason":"NotFound"`},
		{"GET", "/version", "plugintest-token", "", 404, "application/json", `"reason":"NotFound"`},
		{"GET", "/api/v1/namespaces/a/pods/b", "wrong", "", 401, "application/json", `"reason":"Unauthorized"`},
		{"DELETE", "/api/v1/namespaces/a/pods/b", "plugintest-token", "", 405, "application/json", `"reason":"MethodNotAllowed"`},
	}
	var want []string
	for _, c := range cases {
		want = append(want, c.method+" "+c.path)
		r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL()+c.path, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+c.token)
		r.Header.Set("Accept", c.accept)
		resp, err := transport.RoundTrip(r)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, c.code, resp.StatusCode, c)
		assert.Equal(t, c.contentType, resp.Header.Get("Content-Type"), c)
		assert.Contains(t, string(body), c.contains)
	}
	assert.Equal(t, want, server.Requests())
}

func TestHooksChangeThePodBetweenRequests(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "old"}}
	server.SetPod(pod)
	server.Handle(func(n int, _ http.ResponseWriter, _ *http.Request) bool {
		if n == 2 {
			pod.UID = "new"
			server.SetPod(pod)
		}
		return false
	})
	path, err := server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	client, err := kubepod.Open(path)
	require.NoError(t, err)
	defer client.Close()
	for _, want := range []string{"old", "new"} {
		got, err := client.Pod(t.Context(), "a", "b")
		require.NoError(t, err)
		assert.EqualValues(t, want, got.UID)
	}
	server.Handle(apiservertest.First(3, apiservertest.Answer(503)))
	_, err = client.Pod(t.Context(), "a", "b")
	require.Error(t, err)
	_, err = client.Pod(t.Context(), "a", "b")
	require.NoError(t, err)
	server.DeletePod("a", "b")
	_, err = client.Pod(t.Context(), "a", "b")
	require.ErrorContains(t, err, `pods "b" not found`)
}

func TestCloseEndsWhatHangs(t *testing.T) {
	defer goleak.VerifyNone(t)
	server := apiservertest.NewAPIServer(t)
	path, err := server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	client, err := kubepod.Open(path)
	require.NoError(t, err)
	arrived := make(chan struct{})
	server.Handle(func(n int, w http.ResponseWriter, r *http.Request) bool {
		close(arrived)
		return apiservertest.Hang()(n, w, r)
	})
	go func() { <-arrived; server.Close() }()
	_, err = client.Pod(t.Context(), "a", "b")
	require.Error(t, err)
	server.Close()
	client.Close()
}
