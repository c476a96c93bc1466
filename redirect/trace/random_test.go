package trace_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// genRule makes rules of any kind, sensible or not.
func genRule(t *rapid.T) ruleset.Rule {
	sometimes := func(label string) bool { return rapid.IntRange(0, 4).Draw(t, label) == 0 }
	var r ruleset.Rule
	prefixes := []string{"10.0.0.0/8", "127.0.0.1/32", "::1/128", "fd00::/8", "0.0.0.0/0"}
	prefix := func(label string) ruleset.PrefixMatch {
		p := netip.MustParsePrefix(rapid.SampledFrom(prefixes).Draw(t, label))
		return ruleset.PrefixMatch{Prefix: p, Not: rapid.Bool().Draw(t, label+" not")}
	}
	port := rapid.SampledFrom([]uint16{0, 53, 80, 15001, 15006})
	if sometimes("src") {
		r.Src = prefix("src prefix")
	}
	if sometimes("dst") {
		r.Dst = prefix("dst prefix")
	}
	if sometimes("in") {
		r.In = ruleset.InterfaceMatch{Name: rapid.SampledFrom([]string{"lo", "eth0", "eth+"}).Draw(t, "in name")}
	}
	if sometimes("out") {
		r.Out = ruleset.InterfaceMatch{Name: "lo", Not: rapid.Bool().Draw(t, "out not")}
	}
	r.Proto = rapid.SampledFrom([]ruleset.Proto{0, ruleset.TCP, ruleset.TCP, ruleset.UDP, 1}).Draw(t, "proto")
	if sometimes("dports") {
		r.DstPorts = ruleset.MatchPorts(ruleset.PortRange{First: port.Draw(t, "first"), Last: port.Draw(t, "last")})
	}
	if sometimes("states") {
		r.States = ruleset.States(rapid.IntRange(0, 63).Draw(t, "state bits"))
	}
	if sometimes("mark") {
		r.Mark = ruleset.MarkMatch{Value: 1337, Mask: ruleset.FullMask}
	}
	if sometimes("connmark") {
		r.ConnMark = ruleset.MarkMatch{Value: 1337, Mask: ruleset.FullMask, Not: true}
	}
	if sometimes("owner") {
		r.Owner = []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerKind(rapid.IntRange(0, 3).Draw(t, "kind")), 1337)}
	}
	r.Target = ruleset.Target{
		Action: ruleset.Action(rapid.IntRange(0, 15).Draw(t, "action")),
		Chain:  rapid.SampledFrom([]string{"A", "B", "NONE", ruleset.Output}).Draw(t, "chain"),
		Port:   port.Draw(t, "to port"), Mark: 1337, Zone: 1,
		To: netip.MustParseAddrPort(rapid.SampledFrom([]string{"127.0.0.1:80", "10.0.0.9:0", "[::1]:80"}).Draw(t, "to")),
	}
	return r
}

func genProgram(t *rapid.T, f ruleset.Family) *ruleset.FamilyRuleset {
	p := &ruleset.FamilyRuleset{Family: f}
	names := []string{ruleset.Prerouting, ruleset.Input, ruleset.Forward, ruleset.Output, ruleset.Postrouting, "A", "B"}
	for _, table := range ruleset.Tables {
		for _, name := range names {
			c := ruleset.Chain{Table: table, Name: name}
			for range rapid.IntRange(0, 3).Draw(t, "rules") {
				c.Rules = append(c.Rules, genRule(t))
			}
			p.Chains = append(p.Chains, c)
		}
	}
	if rapid.Bool().Draw(t, "routing") {
		p.Routing = &ruleset.Routing{Mark: 1337, Table: 133}
	}
	return p
}

// Whatever the rules and the packet, there is a result that makes sense or an
// UnmodelledError, and the drawing stays well-formed.
func TestAnyProgram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rs ruleset.Ruleset
		rs.Set(genProgram(t, ruleset.IPv4))
		rs.Set(genProgram(t, ruleset.IPv6))
		p := genPacket(t)
		r, err := trace.Trace(rs, p)
		if err != nil {
			var unmodelled *trace.UnmodelledError
			if !errors.As(err, &unmodelled) && !strings.Contains(err.Error(), "packet:") {
				t.Fatalf("%v", err)
			}
			return
		}
		checkResult(t, rs, p, r)
		checkMermaid(t, trace.Mermaid(rs, ruleset.FamilyOf(p.Dst.Addr()), &r))
	})
}

type fataler interface {
	require.TestingT
	Helper()
}

func checkResult(t fataler, rs ruleset.Ruleset, p trace.Packet, r trace.Result) {
	t.Helper()
	require.NotNil(t, r.Path)
	require.Len(t, r.Steps, len(r.Path))
	require.NotEmpty(t, r.Reason)
	for i, s := range r.Steps {
		require.Equal(t, r.Path[i], s.String())
		c := rs.Family(ruleset.FamilyOf(p.Dst.Addr())).Chain(s.Table, s.Chain)
		require.NotNil(t, c)
		require.True(t, c.Rules[s.Position-1].Equal(s.Rule))
	}
	switch r.Verdict {
	case trace.Redirect, trace.TProxy:
		require.Truef(t, r.ToPort != 0 || p.Proto != ruleset.TCP && p.Proto != ruleset.UDP || p.Dst.Port() == 0, "%s", r)
	case trace.Pass, trace.Drop:
		require.Zero(t, r.ToPort)
		require.False(t, r.ToAddr.IsValid())
	default:
		require.Fail(t, fmt.Sprintf("verdict %q", r.Verdict))
	}
}

// FuzzPacketJSON feeds lines of text as meshcni-redirect trace reads them.
func FuzzPacketJSON(f *testing.F) {
	f.Add([]byte(`{"direction":"out","proto":"tcp","src":"10.244.1.5","dst":"10.0.0.1","dport":443,"uid":1000,"gid":1}`))
	f.Add([]byte(`{"direction":"in","proto":"udp","dst":"fd00::5%eth0","dport":53,"in_interface":"lo"}`))
	d := redirect.Default()
	d.Mode = redirect.ModeTProxy
	d.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	rs := d.MustRuleset()
	f.Fuzz(func(t *testing.T, line []byte) {
		var p trace.Packet
		if p.UnmarshalJSON(line) != nil {
			return
		}
		r, err := trace.Trace(rs, p)
		if err != nil {
			require.ErrorContains(t, err, "packet: ", "our own rules are within the model")
			return
		}
		require.NotEmpty(t, r.Reason)
	})
}

func BenchmarkTrace(b *testing.B) {
	d := redirect.Default()
	d.Mode = redirect.ModeTProxy
	d.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"))
	rs := d.MustRuleset()
	packets := map[string]trace.Packet{}
	for name, text := range map[string]string{
		"outbound": "out tcp uid 1000 -> 198.51.100.10:443",
		"proxy":    "out tcp uid 1337 -> 198.51.100.10:443",
		"inbound":  "in tcp from 10.0.0.9 -> 10.244.1.5:8080",
		"hairpin":  "out tcp uid 1337 -> 10.244.1.5:8080",
	} {
		packets[name] = packet(b, text)
	}
	for name, p := range packets {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := trace.Trace(rs, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
