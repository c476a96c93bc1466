package ruleset_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// small is a program that can be read at a glance.
func small(rules ...string) *ruleset.FamilyRuleset {
	p := &ruleset.FamilyRuleset{Family: ruleset.IPv4, Owner: redirect.Default().Names.Owner()}
	if len(rules) == 0 {
		return p
	}
	p.Chains = []ruleset.Chain{
		{Table: ruleset.NAT, Name: "OUTPUT", Rules: []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_OUTPUT"}}}},
		{Table: ruleset.NAT, Name: "MESH_OUTPUT"},
	}
	for _, text := range rules {
		r, err := ruleset.ParseRule(ruleset.IPv4, text)
		if err != nil {
			panic(err)
		}
		p.Chains[1].Rules = append(p.Chains[1].Rules, r)
	}
	return p
}

func parse(t testing.TB, f ruleset.Family, text string) ruleset.LiveChains {
	t.Helper()
	saved, err := ruleset.Parse(f, text)
	require.NoError(t, err)
	return saved
}

// predecessorNAT and predecessorRest are what an init container of the same mesh
// leaves: chains of the same names, but with rules right in the built-in ones.
const (
	predecessorNAT = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:MESH_INBOUND - [0:0]
:MESH_IN_REDIRECT - [0:0]
:MESH_OUTPUT - [0:0]
:MESH_OLD - [0:0]
:MESH_REDIRECT - [0:0]
-A PREROUTING -i net1 -j RETURN
-A PREROUTING -p tcp -j MESH_INBOUND
-A OUTPUT -o net1 -j RETURN
-A OUTPUT -p udp -m udp --dport 53 -m owner --uid-owner 1337 -j RETURN
-A OUTPUT -p tcp -j MESH_OUTPUT
-A OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053
-A MESH_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
-A MESH_INBOUND -p tcp -j MESH_IN_REDIRECT
-A MESH_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A MESH_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A MESH_OUTPUT -j MESH_REDIRECT
-A MESH_OLD -j RETURN
-A MESH_REDIRECT -p tcp -j REDIRECT --to-ports 15001
COMMIT
`
	predecessorRest = `*mangle
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -m conntrack --ctstate INVALID -j DROP
-A PREROUTING -p tcp -m mark --mark 0x539 -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff
-A OUTPUT -p tcp -m connmark --mark 0x539 -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -p udp -m udp --sport 53 -j CT --zone 1
-A OUTPUT -p udp -m udp --dport 53 -m owner --uid-owner 1337 -j CT --zone 1
COMMIT
`
	foreign = `*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:MESHED - [0:0]
-A PREROUTING -i net9 -j RETURN
-A OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 5353
-A OUTPUT -m comment --comment "not yours" -j MESHED
-A MESHED -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.9:80
COMMIT
*raw
:OUTPUT ACCEPT [0:0]
-A OUTPUT -p udp -m udp --dport 5000 -j CT --zone 7
COMMIT
`
)

func TestTransition(t *testing.T) {
	two := small("-d 10.0.0.0/8 -j RETURN", "-p tcp -j REDIRECT --to-ports 15001")
	for _, c := range []struct {
		name string
		want *ruleset.FamilyRuleset
		live string // "" means none
		text string
	}{
		{"fresh", two, "", two.String()},
		{"fresh, with tables that are empty", two, "*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n", two.String()},
		{"the same", two, two.String(), ""},
		{"the same, otherwise printed", two, "*nat\n:MESH_OUTPUT - [9:9]\n[1:2] -A OUTPUT -j MESH_OUTPUT\n" +
			"-A MESH_OUTPUT -d 10.0.0.0/8 -j RETURN\n-A MESH_OUTPUT -p 6 -j REDIRECT --to-ports 15001\nCOMMIT\n", ""},
		{"changed: the jump stays", two, small("-j RETURN").String(), "*nat\n:MESH_OUTPUT - [0:0]\n" +
			"-A MESH_OUTPUT -d 10.0.0.0/8 -j RETURN\n-A MESH_OUTPUT -p tcp -j REDIRECT --to-ports 15001\nCOMMIT\n"},
		{"the jump is lost", two, strings.Replace(two.String(), "-A OUTPUT -j MESH_OUTPUT\n", "", 1), "*nat\n:MESH_OUTPUT - [0:0]\n" +
			"-A OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -d 10.0.0.0/8 -j RETURN\n-A MESH_OUTPUT -p tcp -j REDIRECT --to-ports 15001\nCOMMIT\n"},
		{"the jump is there twice", small("-j RETURN"), "*nat\n:MESH_OUTPUT - [0:0]\n-A OUTPUT -j MESH_OUTPUT\n-A OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -j RETURN\nCOMMIT\n",
			"*nat\n:MESH_OUTPUT - [0:0]\n-D OUTPUT -j MESH_OUTPUT\n-D OUTPUT -j MESH_OUTPUT\n-A OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -j RETURN\nCOMMIT\n"},
		{"a stale chain", small("-j RETURN"), "*nat\n:MESH_OUTPUT - [0:0]\n:MESH_STALE - [0:0]\n-A OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -j RETURN\nCOMMIT\n",
			"*nat\n:MESH_STALE - [0:0]\n:MESH_OUTPUT - [0:0]\n-A MESH_OUTPUT -j RETURN\n-X MESH_STALE\nCOMMIT\n"},
		{"others' rules are not named", small("-j RETURN"), foreign, small("-j RETURN").String()},
		{"nothing wanted, nothing there", small(), foreign, ""},
		{"nothing wanted", small(), two.String(), "*nat\n:MESH_OUTPUT - [0:0]\n-D OUTPUT -j MESH_OUTPUT\n-X MESH_OUTPUT\nCOMMIT\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var live ruleset.LiveChains
			if c.live != "" {
				live = parse(t, ruleset.IPv4, c.live)
			}
			assert.Equal(t, sorted(c.text), sorted(c.want.Transition(live)))
			assert.Equal(t, c.text == "", len(c.want.Diff(live)) == 0, "Diff and Transition differ about whether there is a difference: %v", c.want.Diff(live))
		})
	}
}

// sorted keeps the order of rules, in which all meaning is, but not that of
// chains' rules among each other.
func sorted(text string) map[string][]string {
	chains := map[string][]string{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		key := f[0]
		if len(f) > 1 && (key == "-A" || key == "-D") {
			key += f[1]
		}
		chains[key] = append(chains[key], line)
	}
	return chains
}

// TestTransitionOrder: what gains rules comes before what loses some, so that a
// change of the mode, which moves capture from one table to another, leaves no
// moment without.
func TestTransitionOrder(t *testing.T) {
	r := redirect.Default()
	tproxy := r
	tproxy.Mode = redirect.ModeTProxy
	there := tproxy.MustRuleset().IPv4.Transition(parse(t, ruleset.IPv4, r.MustRuleset().IPv4.String()))
	assert.Less(t, strings.Index(there, "*mangle"), strings.Index(there, "*nat"), "to TPROXY")
	back := r.MustRuleset().IPv4.Transition(parse(t, ruleset.IPv4, tproxy.MustRuleset().IPv4.String()))
	assert.Less(t, strings.Index(back, "*nat"), strings.Index(back, "*mangle"), "back")
	assert.Equal(t, 2, strings.Count(there, "COMMIT\n"))
	assert.Equal(t, 2, strings.Count(back, "COMMIT\n"))
}

func TestPresent(t *testing.T) {
	owner := redirect.Default().Names.Owner()
	assert.False(t, owner.Present(nil))
	assert.False(t, owner.Present(parse(t, ruleset.IPv4, foreign)))
	assert.False(t, owner.Present(parse(t, ruleset.IPv4, predecessorRest)), "without a jump, marks and zones are anybody's")
	assert.True(t, owner.Present(parse(t, ruleset.IPv4, predecessorNAT)))
	assert.True(t, owner.Present(parse(t, ruleset.IPv4, "*nat\n:MESH_X - [0:0]\nCOMMIT\n")), "an empty chain")
	assert.False(t, ruleset.Ownership{}.Present(parse(t, ruleset.IPv4, predecessorNAT)), "the zero Owner owns nothing")
}

func TestDiff(t *testing.T) {
	p := small("-d 10.0.0.0/8 -j RETURN", "-d 11.0.0.0/8 -j RETURN", "-p tcp -j REDIRECT --to-ports 15001")
	head := "*nat\n:MESH_OUTPUT - [0:0]\n-A OUTPUT -p udp -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT\n"
	rule := func(s string) string { return "-A MESH_OUTPUT " + s + "\n" }
	a, b, c := rule("-d 10.0.0.0/8 -j RETURN"), rule("-d 11.0.0.0/8 -j RETURN"), rule("-p tcp -j REDIRECT --to-ports 15001")
	for _, tt := range []struct {
		name string
		live string
		want []string
	}{
		{"as wanted", head + a + b + c + "COMMIT\n", nil},
		{"missing", head + a + c + "COMMIT\n", []string{"ipv4 nat/MESH_OUTPUT:2 missing: -d 11.0.0.0/8 -j RETURN"}},
		{"unexpected", head + a + rule("-j ACCEPT") + b + c + "COMMIT\n", []string{"ipv4 nat/MESH_OUTPUT:2 unexpected: -j ACCEPT"}},
		{"unexpected and foreign", head + a + b + c + rule("-m comment --comment x -j DROP") + "COMMIT\n",
			[]string{"ipv4 nat/MESH_OUTPUT:4 unexpected: -m comment --comment x -j DROP"}},
		{"twice", head + a + a + b + c + "COMMIT\n", []string{"ipv4 nat/MESH_OUTPUT:2 unexpected: -d 10.0.0.0/8 -j RETURN"}},
		{"moved", head + b + a + c + "COMMIT\n", []string{
			"ipv4 nat/MESH_OUTPUT:1 unexpected: -d 11.0.0.0/8 -j RETURN", "ipv4 nat/MESH_OUTPUT:2 missing: -d 11.0.0.0/8 -j RETURN",
		}},
		{"changed", head + a + b + rule("-p tcp -j REDIRECT --to-ports 15002") + "COMMIT\n", []string{
			"ipv4 nat/MESH_OUTPUT:3 unexpected: -p tcp -j REDIRECT --to-ports 15002", "ipv4 nat/MESH_OUTPUT:3 missing: -p tcp -j REDIRECT --to-ports 15001",
		}},
		{"no jump", "*nat\n:MESH_OUTPUT - [0:0]\n" + a + b + c + "COMMIT\n", []string{"ipv4 nat/OUTPUT:1 missing: -j MESH_OUTPUT"}},
		{"two jumps", head + "-A OUTPUT -j MESH_OUTPUT\n" + a + b + c + "COMMIT\n", []string{"ipv4 nat/OUTPUT:3 unexpected: -j MESH_OUTPUT"}},
		{"a chain too many", "*raw\n:MESH_OLD - [0:0]\nCOMMIT\n" + head + a + b + c + "COMMIT\n", []string{"ipv4 raw/MESH_OLD:0 unexpected: "}},
		{"a chain too many, in use", strings.Replace(head, ":", ":MESH_OLD - [0:0]\n-A MESH_OLD -j ACCEPT\n:", 1) + a + b + c + "COMMIT\n",
			[]string{"ipv4 nat/MESH_OLD:1 unexpected: -j ACCEPT"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := parse(t, ruleset.IPv4, tt.live)
			var got []string
			for _, d := range p.Diff(live) {
				got = append(got, d.String())
			}
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.want == nil, p.Transition(live) == "")
		})
	}
	assert.Len(t, p.Diff(nil), 4, "in a namespace without rules, all are missing")
}

func TestDiffSeesWhatAPredecessorLeft(t *testing.T) {
	p := redirect.Default().MustRuleset().IPv4
	var got []string
	for _, d := range p.Diff(parse(t, ruleset.IPv4, predecessorNAT+predecessorRest)) {
		if d.Kind == ruleset.KindUnexpected && chains.IsBuiltin(d.Chain) {
			got = append(got, d.Table+"/"+d.Chain)
		}
	}
	assert.ElementsMatch(t, []string{
		"nat/PREROUTING", "nat/PREROUTING", "nat/OUTPUT", "nat/OUTPUT", "nat/OUTPUT", "nat/OUTPUT",
		"mangle/PREROUTING", "mangle/PREROUTING", "mangle/OUTPUT", "raw/PREROUTING", "raw/OUTPUT",
	}, got)
}
