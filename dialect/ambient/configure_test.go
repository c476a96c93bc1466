package ambient_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

// TestConfigure: each key of the configuration reaches the dialect.
func TestConfigure(t *testing.T) {
	configured := func(text string) (dialect.Dialect, error) {
		c, _, err := netconf.Parse([]byte(`{"ambient": `+text+`}`), meshcni.Identity{})
		require.NoError(t, err)
		set, err := dialect.Configure([]dialect.Dialect{ambient.New(ambient.Options{ExcludedNamespaces: []string{"kube-system"}})}, c)
		return *set.Lookup("ambient"), err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{ambient.DataplaneMode: "ambient"}}}
	built := func(text string) redirect.Redirect {
		d, err := configured(text)
		require.NoError(t, err)
		r, err := d.Redirect(pod, nil, nil)
		require.NoError(t, err)
		return r.Redirect
	}
	assert.Equal(t, ambient.DefaultRedirect(), built(`{}`))
	assert.Equal(t, ambient.DefaultRedirect(), built(`{"dns_capture": true, "ipv6": true}`))
	assert.False(t, built(`{"dns_capture": false}`).DNS.Enabled())
	assert.Equal(t, redirect.FamilyPass, built(`{"ipv6": false}`).IPv6)
	assert.Equal(t, "198.18.0.1/32,fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128", built(`{"probe_ipv4": "198.18.0.1"}`).Inbound.ProbeSources.String())
	assert.Equal(t, "169.254.7.127/32,2001:db8::7/128", built(`{"probe_ipv6": "2001:db8::7"}`).Inbound.ProbeSources.String())

	for text, want := range map[string]status.Code{
		`{}`:                           status.CodeSelected,
		`{"enablement_selectors": []}`: status.CodeNotEnabled,
		`{"enablement_selectors": [{"podSelector": {"matchLabels": {"tier": "web"}}}]}`:                                                          status.CodeNotEnabled,
		`{"enablement_selectors": [{"podSelector": {"matchExpressions": [{"key": "istio.io/dataplane-mode", "operator": "Exists"}]}}]}`:          status.CodeSelected,
		`{"enablement_selectors": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}, {"podSelector": {}}]}`:                                    status.CodeSelected,
		`{"enablement_selectors": [{"podSelector": {}, "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}]}`: status.CodeSelected,
	} {
		d, err := configured(text)
		require.NoError(t, err)
		assert.Equal(t, want, d.Decide(pod, &corev1.Namespace{}).Reason, text)
	}

	_, err := configured(`{"enablement_selectors": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}], "probe_ipv4": "::1", "probe_ipv6": "1.2.3.4"}`)
	for _, want := range []string{"pod selector 1", `"::1" is not a single host's IPv4`, `"1.2.3.4" is not a single host's IPv6`} {
		assert.ErrorContains(t, err, want)
	}
	d, err := configured(`{"ipv6": false}`)
	require.NoError(t, err)
	assert.True(t, d.Policy.ExcludesNamespace("kube-system"), "the program's own options stay where the configuration has none")
}

// TestConfigureMistakes: every bad value and every unknown key is named.
func TestConfigureMistakes(t *testing.T) {
	configured := func(text string) (dialect.Set, []string, error) {
		c, unknown, err := netconf.Parse([]byte(`{"ambient": `+text+`, "color": 1}`), meshcni.Identity{})
		require.NoError(t, err)
		set, err := dialect.Configure([]dialect.Dialect{ambient.New(ambient.Options{})}, c)
		return set, set.Unknown(unknown), err
	}
	_, unknown, err := configured(`{"dns_capture": "yes", "ipv6": 1, "probe_ipv4": "1.2.3", "probe_ipv6": "fe80::1%eth0", "dnsCapture": true,
		"enablement_selectors": [{"podSelectors": {}, "namespaceSelector": {"matchLabels": {"a": 1}, "matchExpression": []}},
			{"podSelector": {"matchExpressions": [{"key": "a", "operater": "In"}]}}, {"podSelector": []}]}`)
	for _, want := range []string{
		`ambient.dns_capture: want true or false, not "yes"`, `ambient.ipv6: want true or false, not 1`,
		`ambient.probe_ipv4: "1.2.3" is not an IP address`, `ambient.probe_ipv6: "fe80::1%eth0" is not an IP address: it has a zone`,
		`ambient.enablement_selectors: [0].podSelectors: unknown key`,
		`ambient.enablement_selectors: [0].namespaceSelector.matchLabels: want an object of strings, not {"a": 1}`,
		`ambient.enablement_selectors: [0].namespaceSelector.matchExpression: unknown key`,
		`ambient.enablement_selectors: [1].podSelector.matchExpressions: want a list`, `ambient.enablement_selectors: [2].podSelector: want an object`,
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.Equal(t, []string{"ambient.dnsCapture", "color"}, unknown)
	for _, list := range []string{`{}`, `"a"`, `[1]`, `[null]`} {
		_, _, err := configured(`{"enablement_selectors": ` + list + `}`)
		assert.ErrorContains(t, err, "ambient.enablement_selectors: want a list of objects", list)
	}
	_, _, err = configured(`1`)
	require.EqualError(t, err, "ambient: want an object, not 1")
	for _, text := range []string{`null`, `{"enablement_selectors": null}`} {
		set, unknown, err := configured(text)
		require.NoError(t, err)
		assert.Equal(t, []string{"color"}, unknown)
		assert.Equal(t, ambient.Selectors(), set.Lookup("ambient").Policy.Selectors, text)
	}
}
