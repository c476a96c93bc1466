package ruleset_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestOtherChains: what another program of the mesh left is replaced, at its place among the rules of others, and those are
// not taken for an init container's.
func TestOtherChains(t *testing.T) {
	owner := ruleset.Ownership{Prefix: "ISTIO_", Marks: []uint32{0x111}, OtherChains: []string{"ISTIO_PRERT"}}
	jump := func(chain string) []ruleset.Rule {
		return []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: chain}}}
	}
	want := &ruleset.FamilyRuleset{Family: ruleset.IPv4, Owner: owner, Chains: []ruleset.Chain{
		{Table: ruleset.NAT, Name: ruleset.Prerouting, Rules: jump("ISTIO_PREROUTING")},
		{Table: ruleset.NAT, Name: ruleset.Output, Rules: jump("ISTIO_OUTPUT")},
		{Table: ruleset.NAT, Name: "ISTIO_PREROUTING", Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 1}}}},
		{Table: ruleset.NAT, Name: "ISTIO_OUTPUT", Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 2}}}},
	}}
	const left = `*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -s 9.9.9.9/32 -j ACCEPT
-A PREROUTING -j ISTIO_PRERT
-A PREROUTING -p tcp -j ACCEPT
-A OUTPUT -j ISTIO_OUTPUT
-A OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 54
-A OUTPUT -m mark --mark 0x111 -j RETURN
-A ISTIO_PRERT -p tcp -j REDIRECT --to-ports 3
-A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 4
COMMIT
`
	live, err := ruleset.Parse(ruleset.IPv4, left)
	require.NoError(t, err)
	assert.Equal(t, `*nat
:ISTIO_PRERT - [0:0]
:ISTIO_PREROUTING - [0:0]
:ISTIO_OUTPUT - [0:0]
-D PREROUTING -j ISTIO_PRERT
-A ISTIO_PREROUTING -p tcp -j REDIRECT --to-ports 1
-A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 2
-I PREROUTING 2 -j ISTIO_PREROUTING
-X ISTIO_PRERT
COMMIT
`, want.Transition(live))

	// Without the name, the jump is an init container's, and so are rules like those that it makes.
	want.Owner.OtherChains = nil
	assert.Contains(t, want.Transition(live), "-D OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 54\n")
}

// TestMarkFirst: the order of the matches is a matter of the text only.
func TestMarkFirst(t *testing.T) {
	r := ruleset.Rule{Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(53)), Mark: ruleset.MarkMatch{Value: 1, Mask: 3}, Target: ruleset.Target{Action: ruleset.ActionReturn}}
	first := r
	first.MarkFirst = true
	assert.Equal(t, "-p udp -m udp --dport 53 -m mark --mark 0x1/0x3 -j RETURN", r.Text(ruleset.IPv4))
	assert.Equal(t, "-p udp -m mark --mark 0x1/0x3 -m udp --dport 53 -j RETURN", first.Text(ruleset.IPv4))
	assert.True(t, r.Equal(first))
}
