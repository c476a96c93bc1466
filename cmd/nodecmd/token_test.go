//go:build linux

package nodecmd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// tokenServer answers requests for tokens as an API server does, and keeps the last one.
func tokenServer(t *testing.T, answer func(w http.ResponseWriter, r *authenticationv1.TokenRequest)) (env map[string]string, got func() (path string, r authenticationv1.TokenRequest)) {
	t.Helper()
	var path string
	var last authenticationv1.TokenRequest
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/token") { // detection and the node's events
			http.NotFound(w, r)
			return
		}
		path, last = r.Method+" "+r.URL.Path, authenticationv1.TokenRequest{}
		if assert.NoError(t, json.NewDecoder(r.Body).Decode(&last)) {
			w.Header().Set("Content-Type", "application/json")
			answer(w, &last)
		}
	}))
	t.Cleanup(s.Close)
	_, env = node(t)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"], env["KUBERNETES_SERVICE_PROTOCOL"] = host, port, "http"
	env["NODE_NAME"], env["POD_NAMESPACE"] = "node-a", "mesh"
	return env, func() (string, authenticationv1.TokenRequest) { return path, last }
}

// request asks as the agent does with an environment and flags.
func request(t *testing.T, env map[string]string, flags ...string) (string, error) {
	t.Helper()
	p := Program{Env: lookup(env)}
	s, err := p.Parse(append([]string{"run"}, flags...))
	require.NoError(t, err)
	p.setDefaults()
	ask := p.pluginToken(s)
	require.NotNil(t, ask)
	return ask(t.Context())
}

func granted(w http.ResponseWriter, r *authenticationv1.TokenRequest) {
	payload := fmt.Sprintf(`{"iat":%d,"exp":%d,"kubernetes.io":{"node":{"name":%q}}}`, time.Now().Unix(), time.Now().Unix()+*r.Spec.ExpirationSeconds, r.Spec.BoundObjectRef.Name)
	r.Status.Token = "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(r)
}

// refused answers as the API server does.
func refused(code int, reason metav1.StatusReason, message string) func(http.ResponseWriter, *authenticationv1.TokenRequest) {
	return func(w http.ResponseWriter, _ *authenticationv1.TokenRequest) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason, Message: message, //nolint:gosec // an HTTP code
		})
	}
}

func TestTokenRequest(t *testing.T) {
	env, got := tokenServer(t, granted)
	token, err := request(t, env)
	require.NoError(t, err)
	assert.NotEmpty(t, token)
	path, r := got()
	assert.Equal(t, "POST /api/v1/namespaces/mesh/serviceaccounts/meshcni-plugin/token", path)
	assert.Equal(t, &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: "node-a"}, r.Spec.BoundObjectRef)
	assert.Equal(t, int64(4*3600), *r.Spec.ExpirationSeconds)
	assert.Empty(t, r.Spec.Audiences, "the API server's own")

	_, err = request(t, env, "--plugin-service-account=reader", "--token-lifetime=90m", "--node-name=node-b")
	require.NoError(t, err)
	path, r = got()
	assert.Equal(t, "POST /api/v1/namespaces/mesh/serviceaccounts/reader/token", path)
	assert.Equal(t, "node-b", r.Spec.BoundObjectRef.Name)
	assert.Equal(t, int64(5400), *r.Spec.ExpirationSeconds)
}

// What API servers answer that give no such token: those of before 1.29, those with the feature turned off, and the others.
func TestTokenRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		code        int
		reason      metav1.StatusReason
		message     string
		unsupported bool
	}{
		"older":         {400, metav1.StatusReasonBadRequest, `cannot bind token for serviceaccount "meshcni-plugin" to object of type /v1, Kind=Node`, true},
		"turned off":    {400, metav1.StatusReasonBadRequest, `cannot bind token to a Node object as the "ServiceAccountTokenNodeBinding" feature-gate is disabled`, true},
		"not allowed":   {403, metav1.StatusReasonForbidden, `serviceaccounts "meshcni-plugin" is forbidden`, false},
		"no account":    {404, metav1.StatusReasonNotFound, `serviceaccounts "meshcni-plugin" not found`, false},
		"its own token": {401, metav1.StatusReasonUnauthorized, "Unauthorized", false},
		"broken":        {500, metav1.StatusReasonInternalError, "etcd", false},
	} {
		t.Run(name, func(t *testing.T) {
			env, _ := tokenServer(t, refused(tc.code, tc.reason, tc.message))
			_, err := request(t, env)
			require.ErrorContains(t, err, tc.message)
			require.ErrorContains(t, err, "mesh/meshcni-plugin")
			assert.Equal(t, tc.unsupported, errors.Is(err, errors.ErrUnsupported))
		})
	}
	env, _ := tokenServer(t, granted)
	delete(env, "NODE_NAME")
	_, err := request(t, env)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "--node-name")
	env["NODE_NAME"] = "n"
	delete(env, "KUBERNETES_SERVICE_HOST")
	_, err = request(t, env)
	require.ErrorContains(t, err, "KUBERNETES_SERVICE_HOST")
}

// The program with an API server that cannot bind tokens to nodes: it goes on with its own token and says so once.
func TestFallsBackToItsOwnToken(t *testing.T) {
	env, _ := tokenServer(t, refused(400, metav1.StatusReasonBadRequest, "cannot bind token"))
	dir := strings.TrimSuffix(env["MESHCNI_RUN_DIR"], "/run")
	var stderr output
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- Program{Env: lookup(env), Stderr: &stderr}.Main(ctx, []string{"run", "--metrics-address=", "--health-address="})
	}()
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), `"msg":"ready"`) }, netnstest.Patience, time.Millisecond)
	cancel()
	assert.Equal(t, 0, <-done)
	kubeconfig, err := os.ReadFile(dir + "/run/kubeconfig")
	require.NoError(t, err)
	assert.Contains(t, string(kubeconfig), `token: "t"`)
	assert.Equal(t, 1, strings.Count(stderr.String(), "the agent's own token"), stderr.String())
	assert.Contains(t, stderr.String(), "cannot bind token")
}

func TestTokenLifetime(t *testing.T) {
	_, env := node(t)
	for value, says := range map[string]string{
		"10m": "", "4h": "", "24h": "", "1h0m6s": "",
		"9m59s": "between 10m0s and 24h0m0s", "24h1s": "between", "1ns": "between", "10m0.5s": "whole seconds", "3607s": "a year", "60m7s": "a year",
		"0": "above 0", "-4h": "above 0", "day": "invalid duration",
	} {
		_, err := Program{Env: lookup(env)}.Parse([]string{"run", "--token-lifetime=" + value})
		if says == "" {
			require.NoError(t, err, value)
			continue
		}
		require.ErrorContains(t, err, says, value)
		require.ErrorContains(t, err, "token-lifetime")
	}
	s, err := Program{Env: lookup(env)}.Parse([]string{"run", "--plugin-service-account="})
	require.NoError(t, err)
	assert.Nil(t, Program{}.pluginToken(s), "the agent's own, as was asked for")
	assert.Equal(t, netconf.Duration(4*time.Hour), s.TokenLifetime)
}
