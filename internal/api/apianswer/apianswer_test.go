package apianswer_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/api/apianswer"
)

// TestTheProxyIsNamed: with the variable, and without its password.
func TestTheProxyIsNamed(t *testing.T) {
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer refuses.Close()
	proxy, err := url.Parse(refuses.URL)
	require.NoError(t, err)
	proxy.User = url.UserPassword("me", "secret")
	through := http.ProxyURL(proxy)
	client := http.Client{Transport: apianswer.Checked(&http.Transport{Proxy: through}, through, "")}
	for _, c := range [][2]string{{"https", "HTTPS_PROXY in the environment: Forbidden"}, {"http", "HTTP_PROXY in the environment: no API server's answer, but 403 Forbidden from http://192.0.2.1: nothing else"}} {
		_, err := client.Get(c[0] + "://192.0.2.1") //nolint:bodyclose,noctx // there is none
		require.ErrorContains(t, err, "through proxy http://me:xxxxx@"+proxy.Host+", of "+c[1])
	}
}
