package ruleset_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// What sends packets to a proxy sends none while the pod leaves; what drops invalid packets, which the connections that end still need, stays.
func TestDrainingKeepsWhatIsNoRedirection(t *testing.T) {
	drop := ruleset.Target{Action: ruleset.ActionDrop}
	p := &ruleset.FamilyRuleset{Family: ruleset.IPv4, Owner: ruleset.Ownership{Prefix: "MESH_"}, Chains: []ruleset.Chain{
		{Table: ruleset.Mangle, Name: "MESH_PREROUTING", Rules: []ruleset.Rule{
			{States: ruleset.StateInvalid, Target: drop},
			{Proto: ruleset.TCP, Target: drop},
			{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionTProxy, Port: 15006}},
		}},
		{Table: ruleset.Filter, Name: "MESH_INPUT", Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: drop}}},
	}}
	pass := ruleset.Target{Action: ruleset.ActionReturn}
	left := ruleset.Ruleset{IPv4: p}.Draining()
	assert.Equal(t, []ruleset.Rule{{States: ruleset.StateInvalid, Target: drop}, {Proto: ruleset.TCP, Target: pass}, {Proto: ruleset.TCP, Target: pass}},
		left.IPv4.Chain(ruleset.Mangle, "MESH_PREROUTING").Rules)
	assert.Nil(t, left.IPv4.Chain(ruleset.Filter, "MESH_INPUT"))
	assert.Nil(t, left.IPv6)
}

// Rulesets are equal if both families are.
func TestEqual(t *testing.T) {
	one := func(f ruleset.Family, a ruleset.Action) *ruleset.FamilyRuleset {
		return &ruleset.FamilyRuleset{Family: f, Chains: []ruleset.Chain{{Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{{Target: ruleset.Target{Action: a}}}}}}
	}
	both := func() ruleset.Ruleset {
		return ruleset.Ruleset{IPv4: one(ruleset.IPv4, ruleset.ActionReturn), IPv6: one(ruleset.IPv6, ruleset.ActionReturn)}
	}
	rs := both()
	assert.True(t, rs.Equal(both()))
	for name, o := range map[string]ruleset.Ruleset{
		"IPv4 differs":    {IPv4: one(ruleset.IPv4, ruleset.ActionAccept), IPv6: rs.IPv6},
		"IPv6 differs":    {IPv4: rs.IPv4, IPv6: one(ruleset.IPv6, ruleset.ActionAccept)},
		"IPv6 is missing": {IPv4: rs.IPv4},
		"IPv4 is missing": {IPv6: rs.IPv6},
	} {
		assert.False(t, rs.Equal(o), name)
		assert.False(t, o.Equal(rs), name)
	}
}
