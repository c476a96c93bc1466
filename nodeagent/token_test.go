//go:build linux

package nodeagent

import (
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
func tokenServer(t *testing.T, answer func(w http.ResponseWriter, r *authenticationv1.TokenRequest)) (o Options, got func() (path string, r authenticationv1.TokenRequest)) {
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
	_, o = node(t)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	c := &o.Config
	c.KubernetesHost, c.KubernetesPort, c.KubernetesProtocol, c.Node, c.Plugin.PodNamespace = host, port, "http", "node-a", "mesh"
	return o, func() (string, authenticationv1.TokenRequest) { return path, last }
}

// request asks as the agent does.
func request(t *testing.T, o Options) (string, error) {
	t.Helper()
	ask := o.withDefaults().pluginToken(o.Config)
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
	o, got := tokenServer(t, granted)
	token, err := request(t, o)
	require.NoError(t, err)
	assert.NotEmpty(t, token)
	path, r := got()
	assert.Equal(t, "POST /api/v1/namespaces/mesh/serviceaccounts/meshcni-plugin/token", path)
	assert.Equal(t, &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: "node-a"}, r.Spec.BoundObjectRef)
	assert.Equal(t, int64(4*3600), *r.Spec.ExpirationSeconds)
	assert.Empty(t, r.Spec.Audiences, "the API server's own")

	o.Config.PluginServiceAccount, o.Config.TokenLifetime, o.Config.Node = "reader", netconf.Duration(90*time.Minute), "node-b"
	_, err = request(t, o)
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
			o, _ := tokenServer(t, refused(tc.code, tc.reason, tc.message))
			_, err := request(t, o)
			require.ErrorContains(t, err, tc.message)
			require.ErrorContains(t, err, "mesh/meshcni-plugin")
			assert.Equal(t, tc.unsupported, errors.Is(err, errors.ErrUnsupported))
		})
	}
	o, _ := tokenServer(t, granted)
	o.Config.Node = ""
	_, err := request(t, o)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "--node-name")
	o.Config.Node, o.Config.KubernetesHost = "n", ""
	_, err = request(t, o)
	require.ErrorContains(t, err, "KUBERNETES_SERVICE_HOST")
}

// The program with an API server that cannot bind tokens to nodes: it goes on with its own token and says so once.
func TestFallsBackToItsOwnToken(t *testing.T) {
	o, _ := tokenServer(t, refused(400, metav1.StatusReasonBadRequest, "cannot bind token"))
	agent := start(t, o)
	require.Eventually(t, func() bool { return strings.Contains(agent.log.String(), `"msg":"ready"`) }, netnstest.Patience, time.Millisecond)
	require.NoError(t, agent.end())
	kubeconfig, err := os.ReadFile(o.Config.RunDir + "/kubeconfig")
	require.NoError(t, err)
	assert.Contains(t, string(kubeconfig), `token: "t"`)
	assert.Equal(t, 1, strings.Count(agent.log.String(), "the agent's own token"), agent.log.String())
	assert.Contains(t, agent.log.String(), "cannot bind token")
}

func TestTokenLifetime(t *testing.T) {
	_, o := node(t)
	for value, says := range map[time.Duration]string{
		10 * time.Minute: "", 4 * time.Hour: "", 24 * time.Hour: "", time.Hour + 6*time.Second: "",
		10*time.Minute - time.Second: "between 10m0s and 24h0m0s", 24*time.Hour + time.Second: "between", 1: "between", 0: "between", -4 * time.Hour: "between",
		10*time.Minute + time.Second/2: "whole seconds", 3607 * time.Second: "a year",
	} {
		o.Config.TokenLifetime = netconf.Duration(value)
		err := o.Config.Validate(nil)
		if says == "" {
			require.NoError(t, err, value)
			continue
		}
		require.ErrorContains(t, err, says, value)
		require.ErrorContains(t, err, "token-lifetime")
	}
	o.Config.PluginServiceAccount = ""
	assert.Nil(t, o.pluginToken(o.Config), "the agent's own, as was asked for")
}
