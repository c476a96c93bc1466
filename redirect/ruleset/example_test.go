package ruleset_test

import (
	"fmt"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// What is live is compared with what is wanted rule by rule; what others have
// put there does not count.
func ExampleFamilyRuleset_Diff() {
	want := redirect.Default().MustRuleset().IPv4

	// What iptables-save printed: somebody has been at work.
	live, err := ruleset.Parse(ruleset.IPv4, want.String()+`*nat
-A POSTROUTING -j MASQUERADE
-A MESH_INBOUND -p tcp -m tcp --dport 22 -j RETURN
COMMIT
`)
	if err != nil {
		panic(err)
	}
	for _, d := range want.Diff(live) {
		fmt.Println(d)
	}
	// Output:
	// ipv4 nat/MESH_INBOUND:2 unexpected: -p tcp -m tcp --dport 22 -j RETURN
}

// Transition is the text for iptables-restore --noflush that turns what is live
// into what is wanted, and nothing else.
func ExampleFamilyRuleset_Transition() {
	p := &ruleset.FamilyRuleset{
		Family: ruleset.IPv4,
		Owner:  ruleset.Ownership{Prefix: "MESH_"},
		Chains: []ruleset.Chain{
			{Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_OUTPUT"}}}},
			{Table: ruleset.NAT, Name: "MESH_OUTPUT", Rules: []ruleset.Rule{
				{Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(443)), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 15001}},
			}},
		},
	}
	live, err := ruleset.Parse(ruleset.IPv4, `*nat
:OUTPUT ACCEPT [0:0]
:MESH_OUTPUT - [0:0]
:MESH_OLD - [0:0]
-A OUTPUT -d 10.0.0.0/8 -j ACCEPT
-A OUTPUT -j MESH_OUTPUT
-A MESH_OUTPUT -j MESH_OLD
COMMIT
`)
	if err != nil {
		panic(err)
	}
	fmt.Print(p.Transition(live))
	fmt.Printf("and then: %q\n", p.Transition(must(ruleset.Parse(ruleset.IPv4, p.String()))))
	// Output:
	// *nat
	// :MESH_OLD - [0:0]
	// :MESH_OUTPUT - [0:0]
	// -A MESH_OUTPUT -p tcp -m tcp --dport 443 -j REDIRECT --to-ports 15001
	// -X MESH_OLD
	// COMMIT
	// and then: ""
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
