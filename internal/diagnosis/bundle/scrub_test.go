//go:build linux

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/diagnosis/bundle"
)

func TestText(t *testing.T) {
	s := &bundle.Scrubber{}
	s.Know("open sesame", "abc") // the second is too short to be looked for
	for text, want := range map[string]string{
		"say open sesame to it":                    "say REDACTED to it",
		"abcdef":                                   "abcdef",
		"password=hunter2 next":                    "password=REDACTED next",
		`{"apiKey": "x y z", "port": 80}`:          `{"apiKey": REDACTED, "port": 80}`,
		`annotation a="{\"token\":\"x\",\"b\":1}"`: `annotation a="{\"token\":REDACTED,\"b\":1}"`,
		"client-key-data: LS0tLS1":                 "client-key-data: REDACTED",
		"Authorization: Basic dXNlcjpwYXNz":        "Authorization: Basic REDACTED",
		"http://joe:pw@proxy:3128/x":               "http://REDACTED@proxy:3128/x",
		"-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nafter": "REDACTED\nafter",
		"-----BEGIN PRIVATE KEY-----\ncut off":                                     "REDACTED",
		"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln ":                               "REDACTED ",
		"xoxb-1234567890-AbCdEfGhIj":                                               "REDACTED",
		"AKIAIOSFODNN7EXAMPLE":                                                     "REDACTED",
		"0a1b2c3d4e5f60718293a4b5c6d7e8f9":                                         "REDACTED",
		"container " + strings.Repeat("c0ffee11", 8):                               "container c0ffee11c0ffREDACTED",
		"c2VjcmV0IHZhbHVlIGhlcmU=":                                                 "REDACTED",
		"AbcdefghijklmnopqrstuvwxyzAbcdefghijkl":                                   "REDACTED",
		"token-expired: the token in the kubeconfig has expired":                   "token-expired: the token in the kubeconfig has expired",
		"pod payments-frontend-7d9f8b6c5-x2x9k":                                    "pod payments-frontend-7d9f8b6c5-x2x9k",
		"uid 3f2a9c1e-77d0-4b7e-9a51-0c9f6c1d2e3f":                                 "uid 3f2a9c1e-77d0-4b7e-9a51-0c9f6c1d2e3f",
		"/var/run/netns/cni-3f2a9c1e-77d0-4b7e-9a51-0c9f6c1d2e":                    "/var/run/netns/cni-3f2a9c1e-77d0-4b7e-9a51-0c9f6c1d2e",
		"/var/run/secrets/kubernetes.io/serviceaccount":                            "/var/run/secrets/kubernetes.io/serviceaccount",
		"K8S_POD_INFRA_CONTAINER_ID and ISTIO_META_DNS_CAPTURE":                    "K8S_POD_INFRA_CONTAINER_ID and ISTIO_META_DNS_CAPTURE",
		"traffic.sidecar.istio.io/excludeOutboundPorts=\"80a\"":                    "traffic.sidecar.istio.io/excludeOutboundPorts=\"80a\"",
		"v0.0.0-20260102030405-0123456789ab":                                       "v0.0.0-20260102030405-0123456789ab",
		"-p tcp -m tcp --dport 3306 -j RETURN # FailedCreatePodSandBox":            "-p tcp -m tcp --dport 3306 -j RETURN # FailedCreatePodSandBox",
		`meshcni_blocked{code="token-expired"} 1`:                                  `meshcni_blocked{code="token-expired"} 1`,
		"meshcni_token_expires_timestamp_seconds 1.7e+09":                          "meshcni_token_expires_timestamp_seconds 1.7e+09",
	} {
		assert.Equal(t, want, s.Text(text), text)
	}
}

// TestNetworkConfig: the keys stay, and no value whose meaning is not known.
func TestNetworkConfig(t *testing.T) {
	got, err := bundle.NetworkConfig([]byte(`{"name":"n","cniVersion":"1.0.0","more":"a","plugins":[
		{"type":"theirs","mtu":9000,"flag":true,"none":null,"args":["x",7],"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0","gw":"d?"}],"o":[1,"e"]},"policy":{"type":"k8s","k8s_auth_token":"f"}},
		{"type":"meshcni","dialect":["linkerd","istio"],"kubernetes":{"kubeconfig":"/run/k","exclude_namespaces":["x"],"other":{"a":"g"}}}]}`))
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"n","cniVersion":"1.0.0","more":"REDACTED","plugins":[
		{"type":"theirs","mtu":9000,"flag":true,"none":null,"args":["REDACTED","REDACTED (number)"],"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0","gw":"d?"}],"o":"REDACTED (list)"},"policy":{"type":"k8s","k8s_auth_token":"REDACTED"}},
		{"type":"meshcni","dialect":["linkerd","istio"],"kubernetes":{"kubeconfig":"/run/k","exclude_namespaces":["x"],"other":"REDACTED (object)"}}]}`, string(got))
	for _, bad := range []string{"", "secret", "[1]", `"secret"`, `{"a":1}{"b":2}`, "null"} {
		_, err := bundle.NetworkConfig([]byte(bad))
		require.ErrorContains(t, err, "left out", bad)
		assert.NotContains(t, err.Error(), "secret")
	}
}

// TestAdd: whatever is added is scrubbed, also of a known secret as JSON has it.
func TestAdd(t *testing.T) {
	s := &bundle.Scrubber{}
	s.Know(`a "quoted" & <odd> one`)
	var archive bytes.Buffer
	b := bundle.New(&archive, "support", s)
	b.Add("a.json", []byte(`{"token":{"value":"plain words"},"x":"a \"quoted\" & <odd> one","y":"a \"quoted\" \u0026 \u003codd\u003e one"}`), nil)
	require.NoError(t, b.Close())
	gz, err := gzip.NewReader(&archive)
	require.NoError(t, err)
	r := tar.NewReader(gz)
	_, err = r.Next()
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, `{"token":REDACTED,"x":"REDACTED","y":"REDACTED"}`, string(text))
}
