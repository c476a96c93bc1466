package trace_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// What the tracer does not know is an error that names the rule, and only for
// packets that come as far as the rule.
func TestUnmodelled(t *testing.T) {
	v6 := ruleset.MatchPrefix(netip.MustParsePrefix("fd00::/8"))
	jump := func(chain string) ruleset.Rule {
		return ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: chain}}
	}
	tests := []struct {
		name   string
		table  ruleset.Table
		chain  string
		rule   ruleset.Rule
		reason string
	}{
		{"other family's address", ruleset.Mangle, ruleset.Output, ruleset.Rule{Dst: v6}, "not ipv4"},
		{"ports without protocol", ruleset.Mangle, ruleset.Output, ruleset.Rule{DstPorts: ruleset.MatchPorts(ruleset.Port(1))}, "ports need"},
		{"ports of another protocol", ruleset.Mangle, ruleset.Output, ruleset.Rule{Proto: 132, SrcPorts: ruleset.MatchPorts(ruleset.Port(1))}, "ports need"},
		{"state", ruleset.Mangle, ruleset.Output, ruleset.Rule{States: 1 << 6}, "state"},
		{"kind of owner", ruleset.Mangle, ruleset.Output, ruleset.Rule{Owner: []ruleset.OwnerMatch{{Kind: 9}}}, "owner"},
		{"owner of what comes in", ruleset.Mangle, ruleset.Prerouting, ruleset.Rule{Owner: []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerUID, 1)}}, "OUTPUT"},
		{"target", ruleset.Mangle, ruleset.Output, ruleset.Rule{Target: ruleset.Target{Action: 99}}, "target"},
		{"drop in nat", ruleset.NAT, ruleset.Output, ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionDrop}}, "does not drop"},
		{"redirect in mangle", ruleset.Mangle, ruleset.Output, ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 1}}, "REDIRECT"},
		{"redirect of no protocol", ruleset.NAT, ruleset.Output, ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 1}}, "REDIRECT"},
		{"redirect in POSTROUTING", ruleset.NAT, ruleset.Postrouting, ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 1}}, "REDIRECT"},
		{"DNAT to the other family", ruleset.NAT, ruleset.Output, ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionDNAT, To: netip.MustParseAddrPort("[::1]:1")}}, "DNAT"},
		{"DNAT to a port of no protocol", ruleset.NAT, ruleset.Output, ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionDNAT, To: netip.MustParseAddrPort("127.0.0.1:1")}}, "DNAT"},
		{"TPROXY in OUTPUT", ruleset.Mangle, ruleset.Output, ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionTProxy, Port: 1, Mark: 1}}, "TPROXY"},
		{"zone in mangle", ruleset.Mangle, ruleset.Output, ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionZone, Zone: 1}}, "CT"},
		{"missing chain", ruleset.Mangle, ruleset.Output, jump("NONE"), "does not exist"},
		{"loop", ruleset.Mangle, ruleset.Output, jump(ruleset.Output), "loop"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rs := ruleset.Ruleset{IPv4: &ruleset.FamilyRuleset{Family: ruleset.IPv4, Chains: []ruleset.Chain{{
				Table: tt.table, Name: tt.chain,
				Rules: []ruleset.Rule{{Proto: ruleset.UDP, Target: ruleset.Target{Action: ruleset.ActionAccept}}, tt.rule},
			}}}}
			direction := "out"
			if tt.chain == ruleset.Prerouting {
				direction = "in"
			}
			_, err := trace.Trace(rs, packet(t, direction+" tcp -> 10.0.0.1:80"))
			var unmodelled *trace.UnmodelledError
			require.True(t, errors.As(err, &unmodelled), "%v", err)
			assert.Equal(t, tt.chain, unmodelled.Chain)
			assert.Equal(t, 2, unmodelled.Position)
			assert.Contains(t, unmodelled.Reason, tt.reason)
			assert.Contains(t, err.Error(), "trace: rule "+tt.table.String()+"/"+tt.chain+":2 (")

			_, err = trace.Trace(rs, packet(t, direction+" udp -> 10.0.0.1:80"))
			assert.NoError(t, err, "the packet does not meet the rule")
		})
	}
}

// What would decide and is not known is an error too; what would not, is none.
func TestUnknown(t *testing.T) {
	tests := []struct {
		name, rules, packet string
		wrong               string
	}{
		{"source of what comes in", "mangle PREROUTING -s 10.0.0.0/8 -j DROP", "in tcp -> 10.244.1.5:80", "asks for the source"},
		{"source that another match makes irrelevant", "mangle PREROUTING -s 10.0.0.0/8 -i lo -j DROP", "in tcp -> 10.244.1.5:80", ""},
		{"kind of source of what comes in", "mangle PREROUTING -m addrtype --src-type LOCAL -j DROP", "in tcp -> 10.244.1.5:80", "asks for the source"},
		{"kind of source of what goes out", "mangle OUTPUT -m addrtype --src-type LOCAL -j DROP", "out tcp -> 10.244.1.5:80", ""},
		{"destination on the interface", `
			nat PREROUTING -p tcp -j REDIRECT --to-ports 1
			filter INPUT -d 10.244.1.5/32 -j DROP`, "in tcp -> 10.244.1.5:80", "asks for the destination"},
		{"owner of what is forwarded", "mangle POSTROUTING -m owner ! --uid-owner 1 -j DROP", "in tcp -> 9.9.9.9:80", "no owner"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := trace.Trace(program(t, ruleset.IPv4, tt.rules), packet(t, tt.packet))
			if tt.wrong == "" {
				require.NoError(t, err)
				return
			}
			var unmodelled *trace.UnmodelledError
			require.True(t, errors.As(err, &unmodelled), "%v", err)
			assert.Contains(t, err.Error(), tt.wrong)
		})
	}
}

func TestImpossiblePackets(t *testing.T) {
	dst := netip.MustParseAddrPort("10.0.0.1:80")
	for want, p := range map[string]trace.Packet{
		"direction":   {Proto: ruleset.TCP, Dst: dst},
		"protocol":    {Direction: trace.Out, Dst: dst},
		"destination": {Direction: trace.Out, Proto: ruleset.TCP},
		"families":    {Direction: trace.Out, Proto: ruleset.TCP, Dst: dst, Src: netip.MustParseAddrPort("[::1]:1")},
		"state":       {Direction: trace.Out, Proto: ruleset.TCP, Dst: dst, State: ruleset.StateNew | ruleset.StateInvalid},
	} {
		_, err := trace.Trace(ruleset.Ruleset{}, p)
		assert.ErrorContains(t, err, want)
	}
	r, err := trace.Trace(ruleset.Ruleset{IPv6: &ruleset.FamilyRuleset{Family: ruleset.IPv6}},
		trace.Packet{Direction: trace.Out, Proto: ruleset.TCP, Dst: netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")})
	require.NoError(t, err)
	assert.Equal(t, "ipv4 has no rules: passes", r.Reason, "a mapped address is IPv4 on the wire")
}
