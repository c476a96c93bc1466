package ruleset_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestLiveRuleJSON: what an agent sends is what it has found, whatever names a pod has given to chains.
func TestLiveRuleJSON(t *testing.T) {
	jump := func(chain string) ruleset.Target { return ruleset.Target{Action: ruleset.ActionJump, Chain: chain} }
	for name, r := range map[string]ruleset.LiveRule{
		"of both families": {Family: 0, Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionTProxy, Port: 15006, Mark: 1}}}, Action: "tproxy"},
		"a set": {Family: ruleset.IPv6, Action: "return", Rules: []ruleset.Rule{
			{Dst: ruleset.MatchPrefix(netip.MustParsePrefix("fd00::/8")), Target: ruleset.Target{Action: ruleset.ActionReturn}},
			{Dst: ruleset.PrefixMatch{Prefix: netip.MustParsePrefix("::1/128"), Not: true}, Target: ruleset.Target{Action: ruleset.ActionReturn}},
		}},
		"statements":      {Rules: []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionSetMark, Mark: 5}}, {Target: jump("nat/X")}}, Action: "jump", JumpTo: "nat/X"},
		"a target's name": {Rules: []ruleset.Rule{{Target: jump("ACCEPT")}}, Action: "jump", JumpTo: "ACCEPT"},
		"spaces":          {Rules: []ruleset.Rule{{Target: jump("x -j ACCEPT\n")}}, Action: "jump", JumpTo: "x -j ACCEPT\n"},
		"counts only":     {Rules: []ruleset.Rule{{Proto: ruleset.UDP}}, Counters: &ruleset.Counters{Packets: 1}, Hook: &ruleset.Hook{Type: "nat", Priority: -100}},
		"outside":         {Foreign: "limit: not understood", Action: "accept"},
	} {
		text, err := json.Marshal(r)
		require.NoError(t, err)
		var got ruleset.LiveRule
		require.NoError(t, json.Unmarshal(text, &got), name)
		assert.Equal(t, r, got, "%s: %s", name, text)
	}
}

// TestLiveRuleOfANewerVersion: fields that are not known are passed over, codes are shown as they are, and what a rule does that
// this version does not model is not guessed.
func TestLiveRuleOfANewerVersion(t *testing.T) {
	var live ruleset.Live
	require.NoError(t, json.Unmarshal([]byte(`[
		{"backend": "nftables", "table": "inet istio", "chain": "nat/OUTPUT", "position": 1, "rule": "queue to 3", "action": "queue", "rules": ["-p tcp -j NFQUEUE --queue-num 3"],
			"hook": {"type": "nat", "point": "output", "priority": -100, "policy": "accept", "device": "eth0"}, "shadow": {"x": [1]}, "ours": true},
		{"backend": "nftables", "family": "mptcp", "table": "inet istio", "chain": "c", "position": 1, "rule": "return", "rules": ["-j RETURN"]},
		{"backend": "nftables", "table": "inet istio", "chain": "c", "position": 2, "rule": "return", "model": ["another form"]}
	]`), &live))
	assert.Equal(t, "queue", live[0].Action)
	assert.True(t, live[0].Ours)
	for i, why := range []string{`option "--queue-num" of target NFQUEUE`, "its family is not known", "not understood"} {
		assert.Empty(t, live[i].Rules)
		assert.Contains(t, live[i].Foreign, why)
	}
	_, err := live.Ruleset(ruleset.Ruleset{})
	var foreign *ruleset.ForeignError
	require.ErrorAs(t, err, &foreign)
	assert.Len(t, foreign.Rules, 1, "the others are in no chain that a packet comes to")
	for i := range live {
		live[i].Backend = "xdp"
	}
	_, err = live.Ruleset(ruleset.Ruleset{})
	assert.ErrorContains(t, err, "they are of xdp, which is not known")
}

// TestSince: a counter is compared with that of the same rule.
func TestSince(t *testing.T) {
	look := func(a, b uint64) ruleset.Live {
		return ruleset.Live{
			{Table: "nat", Chain: "X", Position: 1, Text: "a", Counters: &ruleset.Counters{Packets: a, Bytes: 10 * a}},
			{Table: "nat", Chain: "X", Position: 2, Text: "a", Counters: &ruleset.Counters{Packets: b, Bytes: 10 * b}},
			{Table: "nat", Chain: "Y", Position: 1, Text: "a"},
		}
	}
	first, second := look(5, 7), look(6, 2)
	first.Since(nil)
	assert.Nil(t, first[0].Since)
	second.Since(first)
	assert.Equal(t, &ruleset.Counters{Packets: 1, Bytes: 10}, second[0].Since)
	assert.Equal(t, &ruleset.Counters{Packets: 2, Bytes: 20}, second[1].Since, "a new rule")
	assert.Nil(t, second[2].Since)
}

// TestSavedLive: the action of a rule is told if its matches are outside the model too.
func TestSavedLive(t *testing.T) {
	saved, err := ruleset.Parse(ruleset.IPv4, `*nat
:OUTPUT ACCEPT [0:0]
:X - [0:0]
-A OUTPUT -m string --string "-j DNAT" -j REDIRECT --to-ports 1
-A OUTPUT -m string --string x -j X
-A OUTPUT -m comment --comment "-j REDIRECT" -j X
-A OUTPUT -j CONNMARK --or-mark 0x1
[3:4] -A X -j GONE
COMMIT
`)
	require.NoError(t, err)
	live := saved.Live(ruleset.BackendIptablesNFT)
	require.Len(t, live, 5)
	var actions []string
	for _, r := range live {
		actions = append(actions, r.Action+r.JumpTo)
	}
	assert.Equal(t, []string{"redirect", "jumpX", "jumpX", "", "jumpGONE"}, actions)
	assert.True(t, live[0].Captures())
	assert.False(t, live[2].Captures())
	assert.Equal(t, []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "X"}}}, live[2].Rules)
	assert.Equal(t, "there is no such chain", live[4].Foreign)
	assert.Equal(t, &ruleset.Counters{Packets: 3, Bytes: 4}, live[4].Counters)
}
