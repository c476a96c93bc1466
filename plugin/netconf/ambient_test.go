package netconf_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
)

func TestAmbient(t *testing.T) {
	const text = `{"dns_capture":false,"ipv6":true,"enablement_selectors":[` +
		`{"podSelector":{"matchLabels":{"tier":"web"}},"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"In","values":["a","b"]}]}},{}],` +
		`"probe_ipv4":"198.18.0.1","probe_ipv6":"2001:db8::7"}`
	c, unknown, err := netconf.Parse([]byte(`{"type": "meshcni", "ambient": `+text+`}`), meshcni.Identity{})
	require.NoError(t, err)
	assert.Empty(t, unknown)
	assert.Equal(t, netconf.Ambient{
		DNSCapture: netconf.Off, IPv6: netconf.On,
		EnablementSelectors: netconf.Selectors{{
			PodSelector: netconf.LabelSelector{MatchLabels: map[string]string{"tier": "web"}},
			NamespaceSelector: netconf.LabelSelector{MatchExpressions: []netconf.LabelExpression{
				{Key: "team", Operator: "In", Values: []string{"a", "b"}},
			}},
		}, {}},
		ProbeIPv4: "198.18.0.1", ProbeIPv6: "2001:db8::7",
	}, c.Ambient)
	assert.Equal(t, netip.MustParseAddr("198.18.0.1"), c.Ambient.ProbeIPv4.Netip())

	again, _, err := netconf.Parse(c.Marshal(), meshcni.Identity{})
	require.NoError(t, err)
	assert.Equal(t, c.Ambient, again.Ambient)

	// No selector and no selectors are not the same.
	for given, want := range map[string]netconf.Selectors{`{"enablement_selectors": []}`: {}, `{"enablement_selectors": null}`: nil, `{}`: nil, `null`: nil} {
		c, _, err := netconf.Parse([]byte(`{"ambient": `+given+`}`), meshcni.Identity{})
		require.NoError(t, err)
		assert.Equal(t, want, c.Ambient.EnablementSelectors, given)
		again, _, err := netconf.Parse(c.Marshal(), meshcni.Identity{})
		require.NoError(t, err)
		assert.Equal(t, want, again.Ambient.EnablementSelectors, given)
		assert.Equal(t, want == nil, c.Ambient.IsZero())
	}
	assert.NotContains(t, string(netconf.Config{}.Marshal()), "ambient")
	assert.Contains(t, string(netconf.Config{Ambient: netconf.Ambient{IPv6: "perhaps"}}.Marshal()), `"ipv6": null`)
}

func TestAmbientMistakes(t *testing.T) {
	_, unknown, err := netconf.Parse([]byte(`{"ambient": {"dns_capture": "yes", "ipv6": 1, "probe_ipv4": "1.2.3", "probe_ipv6": "fe80::1%eth0", "dnsCapture": true,
		"enablement_selectors": [{"podSelectors": {}, "namespaceSelector": {"matchLabels": {"a": 1}, "matchExpression": []}},
			{"podSelector": {"matchExpressions": [{"key": "a", "operater": "In"}]}}, {"podSelector": []}]}}`), meshcni.Identity{})
	for _, want := range []string{
		`ambient.dns_capture: want true or false, not "yes"`, `ambient.ipv6: want true or false, not 1`,
		`ambient.probe_ipv4: "1.2.3" is not an IP address`, `ambient.probe_ipv6: "fe80::1%eth0" is not an IP address: it has a zone`,
		`ambient.enablement_selectors[0].podSelectors: unknown key`,
		`ambient.enablement_selectors[0].namespaceSelector.matchLabels: want an object of strings, not {"a": 1}`,
		`ambient.enablement_selectors[0].namespaceSelector.matchExpression: unknown key`,
		`ambient.enablement_selectors[1].podSelector.matchExpressions: want a list`, `ambient.enablement_selectors[2].podSelector: want an object`,
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.Equal(t, []string{"ambient.dnsCapture"}, unknown)
	for _, list := range []string{`{}`, `"a"`, `[1]`, `[null]`} {
		_, _, err := netconf.Parse([]byte(`{"ambient": {"enablement_selectors": `+list+`}}`), meshcni.Identity{})
		assert.ErrorContains(t, err, "ambient.enablement_selectors: want a list of objects", list)
	}
	var s netconf.Selectors
	require.NoError(t, s.UnmarshalText([]byte(`[]`)))
	assert.Equal(t, "[]", s.String())
	for _, text := range []string{``, `x`, `null`, `[{"pod": {}}]`} {
		assert.Error(t, s.UnmarshalText([]byte(text)), text)
	}
}
