package ambient_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestDraining: nothing redirects or refuses any more, and marks, routing and what belongs to whom stay.
func TestDraining(t *testing.T) {
	t.Parallel()
	tproxy := redirect.Default()
	tproxy.Mode = redirect.ModeTProxy
	dropped := redirect.Default()
	dropped.IPv6, dropped.DropInvalid = redirect.FamilyDrop, true
	node := ambient.DefaultRedirect()
	node.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	for name, r := range map[string]redirect.Redirect{"ambient": node, "tproxy": tproxy, "dropped": dropped} {
		rs := r.MustRuleset()
		left := rs.Draining()
		for _, f := range ruleset.Families {
			was, p := rs.Family(f), left.Family(f)
			if was == nil {
				assert.Nil(t, p, name)
				continue
			}
			require.NotNil(t, p, name)
			assert.Equal(t, was.Routing, p.Routing, name)
			assert.Equal(t, was.LoopbackAddrs, p.LoopbackAddrs, name)
			assert.Equal(t, was.Owner, p.Owner, name)
			nat := 0
			for _, c := range p.Chains {
				if c.Table == ruleset.NAT {
					nat++
				}
				for _, rule := range c.Rules {
					assert.False(t, c.Table == ruleset.Raw && !rule.DstPorts.IsZero(), "%s: it keeps queries apart that go straight", name)
					assert.NotContains(t, []ruleset.Action{ruleset.ActionRedirect, ruleset.ActionDNAT, ruleset.ActionTProxy}, rule.Target.Action, name)
					assert.False(t, rule.Target.Action == ruleset.ActionDrop && rule.States == 0, "%s: it refuses", name)
				}
			}
			if name == "ambient" {
				answers := left.IPv4.Chain(ruleset.Raw, left.IPv4.Owner.Prefix+ruleset.Output)
				require.NotNil(t, answers)
				assert.Len(t, answers.Rules, 1, "answers that the proxy still owes find who asked")
			}
			assert.Equal(t, 2, nat, "%s: table nat stays in use", name)
		}
		assert.True(t, left.Equal(left.Draining()), "%s: to drain what drains changes nothing", name)
	}
	marks := ambient.DefaultRedirect().MustRuleset()
	for _, c := range marks.IPv4.Chains {
		if c.Table == ruleset.Mangle {
			assert.Equal(t, c.Rules, marks.Draining().IPv4.Chain(c.Table, c.Name).Rules)
		}
	}
	assert.Equal(t, ruleset.Ruleset{}, ruleset.Ruleset{}.Draining())
}
