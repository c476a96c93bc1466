package kubepod_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

// TestMain gives all tests a runtime's environment, with proxies that are not there. net/http reads it once.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		if err := os.Setenv(name, "http://127.0.0.1:1"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// elsewhere is a server's address by which net/http does not take it for one of this host, to which it uses no proxy at all.
func elsewhere(url string) string { return strings.Replace(url, "127.0.0.1", "0.0.0.0", 1) }

func TestTheEnvironmentsProxyIsNotAsked(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(testPod())
	client, err := kubepod.Open(writeConfig(t, "insecure-skip-tls-verify: true\nserver: "+elsewhere(server.URL()), "token: "+server.Token()))
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Pod(t.Context(), "default", "web-0")
	require.NoError(t, err)
	assert.Equal(t, []string{podPath}, server.Requests())
}

// TestTheKubeconfigsProxyIsAsked: that is a setting, which an error names.
func TestTheKubeconfigsProxyIsAsked(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	for _, code := range []int{http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusBadGateway} {
		asked := ""
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Method + " " + r.Host
			w.WriteHeader(code)
		}))
		client, err := kubepod.Open(writeConfig(t, "insecure-skip-tls-verify: true\nserver: "+elsewhere(server.URL())+
			"\nproxy-url: "+strings.Replace(proxy.URL, "//", "//me:secret@", 1), "token: t"))
		require.NoError(t, err)
		_, err = client.Pod(t.Context(), "default", "web-0")
		require.ErrorContains(t, err, "through proxy "+strings.Replace(proxy.URL, "//", "//me:xxxxx@", 1)+", of the kubeconfig's proxy-url: ")
		require.ErrorContains(t, err, http.StatusText(code))
		assert.False(t, apierrors.IsForbidden(err))
		assert.Equal(t, "CONNECT "+strings.TrimPrefix(elsewhere(server.URL()), "https://"), asked)
		client.Close()
		proxy.Close()
	}
	assert.Empty(t, server.Requests())
}

// TestSomethingElseAnswers: what is no Status of an API server is quoted with its status, and means nothing of a pod or of RBAC.
func TestSomethingElseAnswers(t *testing.T) {
	page := "<html><head><title>Access Denied</title></head>\n<body>Ask\tthe gateway's owner <b>"
	for name, c := range map[string]struct {
		code      int
		body      string
		want      string
		transient bool
	}{
		"403":                {403, page, `403 Forbidden from %, Server "squid/5.7", Via "1.1 gate": "Access Denied Ask the gateway's owner"`, true},
		"403, empty":         {403, "", `403 Forbidden from %, Server "squid/5.7", Via "1.1 gate": nothing else`, true},
		"401":                {401, page, "401 Unauthorized", true},
		"404":                {404, page, "404 Not Found", true},
		"407":                {407, page, "407 Proxy Authentication Required", false},
		"502":                {502, page, `502 Bad Gateway from %, Server "squid/5.7", Via "1.1 gate": "Access Denied Ask`, true},
		"503, empty":         {503, "", "503 Service Unavailable", true},
		"200":                {200, page, `200 OK from %, Server "squid/5.7", Via "1.1 gate": "Access Denied Ask`, true},
		"403, with a Pod":    {403, `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"env":[{"value":"secret"}]}]}}`, `403 Forbidden from %, Server "squid/5.7", Via "1.1 gate": it is "Pod" of "v1"`, true},
		"403, other JSON":    {403, `{"error":"denied"}`, `: "{\"error\":\"denied\"}"`, true},
		"403, much":          {403, strings.Repeat("denied ", 1<<16), `(2`, true},
		"403, open brackets": {403, "a < b and <c", `"a < b and <c"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := apiservertest.NewAPIServer(t)
			server.Handle(func(_ int, w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Server", "squid/5.7")
				w.Header().Set("Via", "1.1 gate")
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.body))
				return true
			})
			client := open(t, server)
			_, err := client.Pod(t.Context(), "default", "web-0")
			require.ErrorIs(t, err, kubepod.ErrResponse)
			require.ErrorContains(t, err, strings.Replace(c.want, "%", server.URL(), 1))
			assert.Less(t, len(err.Error()), 1000)
			assert.NotContains(t, err.Error(), "secret")
			assert.False(t, apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err), err)
			assert.Equal(t, c.transient, kubepod.Transient(err))
			require.ErrorIs(t, client.PatchPodStatus(t.Context(), "default", "web-0", []byte("{}")), kubepod.ErrResponse)
		})
	}
}

func TestAStatusWithoutAMessageHasWords(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.Handle(func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
		return true
	})
	_, err := open(t, server).Pod(t.Context(), "default", "web-0")
	require.EqualError(t, err, "get pod default/web-0: the API server answers 403 Forbidden without a word")
	assert.True(t, apierrors.IsForbidden(err))
}
