// Package compare checks whether two firewall programs treat a pod's packets
// alike: ours, and the one that another program has left in a running pod.
//
// [Compare] traces one packet of every kind that the rules of either program can tell apart. For each dimension
// (destination, port, protocol, user, group, source, interface, mark) [Packets] takes one value of each interval
// between the bounds in the rules. No rule of the model can treat two packets of a kind differently, so without a
// difference both programs treat every first packet of a connection alike. [Report.AddConnections] traces the connections
// that these packets open, both ways, and finds the rules that only answers and later packets meet.
//
// So are rules compared that drop packets in a conntrack state such as INVALID, and conntrack zones, by the answers that
// queries get with them. [Blind] lists what no comparison sees.
//
// [Saved] reads iptables-save's output, [Native] that of nft, and [Rules] either. They do not guess: rules outside the
// model make a [ForeignError] that lists them.
package compare

import (
	"errors"
	"fmt"
	"strings"

	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Kind names the one of two programs A and B that captures a packet whose fate differs.
// To capture is to redirect, to hand to a transparent proxy or to drop.
type Kind string

// The kinds of difference.
const (
	Missing Kind = "missing" // only A captures it
	Extra   Kind = "extra"   // only B captures it
	Changed Kind = "changed" // both capture it, in different ways
)

// Difference is one packet whose fate differs.
type Difference struct {
	Packet trace.Packet `json:"packet"`
	A      trace.Result `json:"a"`
	B      trace.Result `json:"b"`
}

// Kind returns which program captures the packet.
func (d Difference) Kind() Kind {
	switch {
	case d.B.Verdict == trace.Pass:
		return Missing
	case d.A.Verdict == trace.Pass:
		return Extra
	}
	return Changed
}

// String returns for example
// "missing: out tcp 10.244.1.5 -> 10.0.0.1:443 uid 1000 gid 1000 by eth0: redirect 15001 | pass".
func (d Difference) String() string {
	return string(d.Kind()) + ": " + Describe(d.Packet) + ": " + d.A.String() + " | " + d.B.String()
}

// Describe names a packet in one line.
func Describe(p trace.Packet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", p.Direction, p.Proto)
	if p.Src.Addr().IsValid() {
		fmt.Fprintf(&b, " %s", p.Src.Addr())
		if p.Src.Port() != 0 && p.Src.Port() != ephemeral {
			fmt.Fprintf(&b, " port %d", p.Src.Port())
		}
	}
	fmt.Fprintf(&b, " -> %s", p.Dst)
	if p.Direction == trace.Out {
		fmt.Fprintf(&b, " uid %d gid %d by %s", p.UID, p.GID, p.OutInterface)
	} else {
		fmt.Fprintf(&b, " by %s", p.InInterface)
	}
	if p.Mark != 0 {
		fmt.Fprintf(&b, " mark %#x", p.Mark)
	}
	if p.State != 0 && p.State != ruleset.StateNew {
		fmt.Fprintf(&b, " state %s", p.State)
	}
	return b.String()
}

// Blind returns what a comparison does not see, a sentence each: two programs that it finds the same may differ there.
func Blind() []string {
	return []string{
		"policy routing, routes and addresses of lo, which iptables-save and nft do not print: they are taken to be the same",
		"traffic other than TCP and UDP, such as ICMP; fragments; broadcast and multicast",
		"what the kernel logs or counts, comments, and the order of rules that changes no packet's fate",
		"what another program's rules, hooks of other priority or an XDP or tc program do before or after these",
		"conntrack entries that are there already: connections made under one program and continued under the other",
		"whether a proxy listens, and what it does with a connection",
	}
}

// Report is the result of [Compare].
type Report struct {
	// Packets counts those that were traced.
	Packets int `json:"packets"`
	// Differences are in the order of the packets.
	Differences []Difference `json:"differences"`
	// Connections counts those that were traced both ways; see [Report.AddConnections].
	Connections int `json:"connections"`
	// ConnectionDifferences are in the order of the connections.
	ConnectionDifferences []ConnectionDifference `json:"connection_differences,omitempty"`
}

// Compare traces the packets through both programs. The error is that of [trace.Trace]: get at a
// rule outside the model with errors.As(err, &unmodelled), where unmodelled is a *[trace.UnmodelledError].
func Compare(a, b ruleset.Ruleset, packets []trace.Packet) (Report, error) {
	report := Report{Packets: len(packets), Differences: []Difference{}}
	for _, p := range packets {
		ra, err := trace.Trace(a, p)
		if err != nil {
			return report, fmt.Errorf("first program, packet %s: %w", Describe(p), err)
		}
		rb, err := trace.Trace(b, p)
		if err != nil {
			return report, fmt.Errorf("second program, packet %s: %w", Describe(p), err)
		}
		if !sameFate(ra, rb) {
			report.Differences = append(report.Differences, Difference{p, ra, rb})
		}
	}
	return report, nil
}

// ForeignRule is a saved rule that is outside the model.
type ForeignRule struct {
	// Family is zero for a rule of nftables, whose Table names it.
	Family ruleset.Family `json:"family,omitzero"`
	Table  string         `json:"table"`
	Chain  string         `json:"chain"`
	Rule   string         `json:"rule"`
	Reason string         `json:"reason"`
}

// String names the rule and says why it is not understood.
func (r ForeignRule) String() string {
	s := fmt.Sprintf("%s/%s: %s (%s)", r.Table, r.Chain, r.Rule, r.Reason)
	if r.Family != 0 {
		return r.Family.String() + " " + s
	}
	return s
}

// ForeignError lists saved rules that cannot be traced. It is [ruleset.ErrForeign].
// Get at it with errors.As(err, &foreign), where foreign is a *compare.ForeignError.
type ForeignError struct{ Rules []ForeignRule }

// Error lists the rules, one a line, whatever characters they have.
func (e *ForeignError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d saved rules are outside the model, so what they do to a packet is not known:", len(e.Rules))
	for _, r := range e.Rules {
		b.WriteString("\n" + visible.Line(r.String()))
	}
	return b.String()
}

// Unwrap makes it [ruleset.ErrForeign].
func (e *ForeignError) Unwrap() error { return ruleset.ErrForeign }

// Saved parses the output of iptables-save and ip6tables-save, one after the other in any order. Their first comment
// tells the family; text without one is IPv4. Comments of rules are left out. Such output has no policy routing and no
// addresses of lo, so these are copied from beside: the program to compare with, or the zero Ruleset.
//
// The error is a [ForeignError], or names a line that is not such output.
func Saved(text string, beside ruleset.Ruleset) (ruleset.Ruleset, error) {
	var rs ruleset.Ruleset
	foreign := &ForeignError{}
	for f, part := range split(text) {
		saved, err := ruleset.Parse(f, part)
		if err != nil {
			return ruleset.Ruleset{}, fmt.Errorf("%s: %w", f, err)
		}
		p := &ruleset.Program{Family: f}
		if o := beside.Program(f); o != nil {
			p.Routing, p.LoopbackAddrs = o.Routing, o.LoopbackAddrs
		}
		for _, t := range saved.Tables {
			foreign.table(p, t)
		}
		rs.Set(p)
	}
	if len(foreign.Rules) > 0 {
		return ruleset.Ruleset{}, foreign
	}
	return rs, nil
}

// split gives each family its part of the text, without rules' comments.
func split(text string) map[ruleset.Family]string {
	parts := map[ruleset.Family]string{}
	family := ruleset.IPv4
	from, to, quoted := 0, 0, false
	for part := range strings.Lines(text) {
		to += len(part)
		// A comment may have line feeds, and what looks like rules behind them.
		if quoted || chains.IsRule(part) {
			if quoted = chains.QuoteOpen(part, quoted); quoted {
				continue
			}
		}
		line := text[from:to]
		from = to
		switch {
		// The name is the program's: ip6tables-save, ip6tables-nft-save, …
		case strings.HasPrefix(line, "# Generated by ip6tables"):
			family = ruleset.IPv6
		case strings.HasPrefix(line, "# Generated by iptables"):
			family = ruleset.IPv4
		}
		parts[family] += withoutComment(line)
	}
	parts[family] += text[from:] // its quote is not closed: the parser says so
	return parts
}

// withoutComment takes `-m comment --comment TEXT` out of a rule.
func withoutComment(line string) string {
	const match = "-m comment --comment "
	for {
		before, rest, ok := strings.Cut(line, match)
		if !ok || !strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "[") {
			return line
		}
		line = before + strings.TrimPrefix(rest[wordEnd(rest):], " ")
	}
}

// wordEnd is the end of the first word, which may be in quotes.
func wordEnd(s string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case (s[i] == ' ' || s[i] == '\n') && !quoted:
			return i
		}
	}
	return len(s)
}

// table adds a saved table to the program, or to what is foreign.
func (e *ForeignError) table(p *ruleset.Program, t ruleset.SavedTable) {
	add := func(chain, rule, reason string) {
		e.Rules = append(e.Rules, ForeignRule{p.Family, t.Name, chain, rule, reason})
	}
	table, err := ruleset.ParseTable(t.Name)
	for _, c := range t.Chains {
		if err != nil {
			for _, r := range c.Rules {
				add(c.Name, r.Text, "its table is not known")
			}
			continue
		}
		if c.Policy != "ACCEPT" && c.Policy != "-" {
			add(c.Name, "policy "+c.Policy, "policies other than ACCEPT are not known")
		}
		chain := ruleset.Chain{Table: table, Name: c.Name}
		for _, r := range c.Rules {
			if !r.Known {
				_, why := ruleset.ParseRule(p.Family, r.Text)
				add(c.Name, r.Text, reason(why))
				continue
			}
			chain.Rules = append(chain.Rules, r.Rule)
		}
		p.Chains = append(p.Chains, chain)
	}
}

func reason(err error) string {
	if err == nil || !errors.Is(err, ruleset.ErrForeign) {
		return "not understood"
	}
	s := strings.TrimSuffix(err.Error(), ": "+ruleset.ErrForeign.Error())
	if i := strings.Index(s, `": `); i >= 0 && strings.HasPrefix(s, `rule "`) {
		s = s[i+3:]
	}
	return s
}
