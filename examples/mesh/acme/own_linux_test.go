package acme_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestRulesOfItsOwn: what no field says is a chain of the mesh's own, which plan, explanation and kernel have as they have the others. HTTP/3 falls
// back to TCP by a field.
func TestRulesOfItsOwn(t *testing.T) {
	defaults := acme.DefaultRedirect()
	defaults.Outbound.DropUDPPorts = redirect.Ports(443)
	defaults.Own = []ruleset.Chain{{Table: ruleset.NAT, Name: "ACME_OUTPUT_FIRST", Rules: []ruleset.Rule{{
		Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(8125)), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 7053},
		Comment: "metrics to the proxy",
	}}}}
	own := mesh
	own.Build = dialect.FromSchema(redirect.Schema{Defaults: defaults, RunAsUser: true, Settings: acme.Settings()})
	require.NoError(t, own.Validate())
	x, err := explain.Pod(dialect.SetOf(own), explain.Input{Subject: dialect.Subject{Pod: pod(nil), Addrs: dialecttest.Addrs()}, Identity: acme.Identity()})
	require.NoError(t, err)
	assert.Contains(t, x.Rules.IPv4.Commented(), "# rules of the mesh's own\n-A OUTPUT -j ACME_OUTPUT_FIRST\n")
	assert.Contains(t, x.Rules.IPv4.Commented(), "# metrics to the proxy\n-A ACME_OUTPUT_FIRST -p udp")

	proxy := netnstest.Options{ProxyUID: 7001, ProxyGID: 7001, ProxyTCP: []uint16{7001, 7002, 7003}, ProxyUDP: []uint16{7053}}
	dialecttest.Fates(t, own, proxy, dialecttest.Case{
		Pod: pod(nil),
		Fates: map[string]string{
			"pod tcp 1000/1000 -> 10.96.5.5:443":       "proxy:7001 orig=10.96.5.5:443",
			"pod udp 1000/1000 -> 198.51.100.10:443":   "timeout",
			"pod udp 1000/1000 -> [2001:db8::10]:443":  "timeout",
			"pod udp 1000/1000 -> 198.51.100.10:8125":  "proxy:7053/udp",
			"pod udp 1000/1000 -> [2001:db8::10]:8125": "proxy:7053/udp",
			"pod udp 1000/1000 -> 10.96.0.10:53":       "out:53/udp",
			"out tcp 0/0 -> 10.244.1.5:8080":           "proxy:7002 orig=10.244.1.5:8080",
		},
	})
}
