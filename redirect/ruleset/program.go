package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Ruleset is the whole program of a pod. A nil program means that the family is left alone. The zero value says nothing: nothing applies
// it or compares a namespace with it, see [Ruleset.Validate].
type Ruleset struct {
	IPv4 *FamilyRuleset `json:"ipv4,omitempty"`
	IPv6 *FamilyRuleset `json:"ipv6,omitempty"`
}

// Family returns the family's program, or nil.
func (rs Ruleset) Family(f Family) *FamilyRuleset {
	switch f {
	case IPv4:
		return rs.IPv4
	case IPv6:
		return rs.IPv6
	}
	return nil
}

// Owner is the owner of the ruleset's programs; zero if there is none.
func (rs Ruleset) Owner() Ownership {
	for _, f := range Families {
		if p := rs.Family(f); p != nil {
			return p.Owner
		}
	}
	return Ownership{}
}

// Set replaces the family's program.
func (rs *Ruleset) Set(p *FamilyRuleset) {
	switch p.Family {
	case IPv4:
		rs.IPv4 = p
	case IPv6:
		rs.IPv6 = p
	}
}

// Equal reports whether both do the same, comments aside.
func (rs Ruleset) Equal(o Ruleset) bool {
	return rs.IPv4.equal(o.IPv4) && rs.IPv6.equal(o.IPv6)
}

// String returns the texts of both families, each under a comment line that names it.
func (rs Ruleset) String() string {
	var b strings.Builder
	for _, f := range Families {
		if p := rs.Family(f); p != nil {
			b.WriteString("# " + f.String() + "\n" + p.String())
		}
	}
	return b.String()
}

// FamilyRuleset is the firewall rules and policy routing of one family.
type FamilyRuleset struct {
	Family Family
	// Owner tells our chains and rules from those of others.
	Owner Ownership
	// Chains, by table in the order of [Tables]; in a table, built-in chains
	// first. Rules in built-in chains are appended to what is there.
	Chains []Chain
	// Routing makes packets with a mark stay on this host. Nil: none needed.
	Routing *Routing
	// LoopbackAddrs are addresses that lo must have, so that the proxy can bind to them.
	LoopbackAddrs []netip.Addr
}

// Chain is a chain with its rules in order.
type Chain struct {
	Table Table
	Name  string
	Rules []Rule
}

// Routing is a policy rule and the one local route of its table, in iproute2's terms: "ip rule add
// fwmark MARK lookup TABLE" and "ip route add local default dev lo table TABLE".
type Routing struct {
	Mark  uint32 `json:"mark"`
	Table uint32 `json:"table"`
	// Mask is the bits of a packet's mark that are compared; 0 means all.
	Mask uint32 `json:"mask,omitempty"`
	// Priority is the rule's, lower first; 0 leaves it to the kernel, which puts it before all others.
	Priority uint32 `json:"priority,omitempty"`
}

// equal reports whether both programs do the same, comments aside. Two nil programs are equal.
func (p *FamilyRuleset) equal(o *FamilyRuleset) bool {
	if p == nil || o == nil {
		return p == o
	}
	if p.Family != o.Family || (p.Routing == nil) != (o.Routing == nil) {
		return false
	}
	if p.Routing != nil && *p.Routing != *o.Routing || !slices.Equal(p.LoopbackAddrs, o.LoopbackAddrs) {
		return false
	}
	return slices.EqualFunc(p.Chains, o.Chains, func(a, b Chain) bool {
		return a.Table == b.Table && a.Name == b.Name && slices.EqualFunc(a.Rules, b.Rules, Rule.Equal)
	})
}

// Chain returns the chain, or nil when the program has none of the name.
func (p *FamilyRuleset) Chain(t Table, name string) *Chain {
	if p == nil {
		return nil
	}
	for i := range p.Chains {
		if p.Chains[i].Table == t && p.Chains[i].Name == name {
			return &p.Chains[i]
		}
	}
	return nil
}

// NumRules counts the program's rules.
func (p *FamilyRuleset) NumRules() int {
	n := 0
	if p == nil {
		return n
	}
	for i := range p.Chains {
		n += len(p.Chains[i].Rules)
	}
	return n
}

// table returns the chains of a table.
func (p *FamilyRuleset) table(t Table) []Chain {
	if p == nil {
		return nil
	}
	first := slices.IndexFunc(p.Chains, func(c Chain) bool { return c.Table == t })
	if first < 0 {
		return nil
	}
	last := first
	for last < len(p.Chains) && p.Chains[last].Table == t {
		last++
	}
	return p.Chains[first:last]
}

// String returns the canonical text: what iptables-restore --noflush (or ip6tables-restore) takes to put the program
// into a namespace that has none of it. It ends in a newline; a program without rules is the empty string. Of one that would be too many
// rules of iptables, the text is that error, which iptables-restore refuses; see [Ruleset.Iptables].
func (p *FamilyRuleset) String() string { return p.text(false) }

// Commented is String with each rule's comment on a line above it and the policy routing at the end
// as comments in iproute2's words; it means the same to iptables-restore.
func (p *FamilyRuleset) Commented() string { return p.text(true) }

func (p *FamilyRuleset) text(comments bool) string {
	p, err := p.plain()
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if p == nil {
		return ""
	}
	b := make([]byte, 0, 128+64*p.NumRules())
	for _, t := range Tables {
		in := p.table(t)
		if len(in) == 0 {
			continue
		}
		b = append(append(append(b, '*'), t.String()...), '\n')
		for _, c := range in {
			if !chains.IsBuiltin(c.Name) {
				b = append(append(append(b, ':'), c.Name...), " - [0:0]\n"...)
			}
		}
		for i := range in {
			b = in[i].append(b, p.Family, comments)
		}
		b = append(b, "COMMIT\n"...)
	}
	if comments {
		for _, l := range p.IPCommands() {
			b = append(append(append(b, "# "...), l...), '\n')
		}
	}
	return string(b)
}

func (c *Chain) append(b []byte, f Family, comments bool) []byte {
	for i := range c.Rules {
		r := &c.Rules[i]
		if comments && r.Comment != "" {
			b = append(append(append(b, "# "...), r.Comment...), '\n')
		}
		b = append(append(append(b, "-A "...), c.Name...), ' ')
		b = append(r.append(b, f), '\n')
	}
	return b
}

// IPCommands returns what the program needs besides rules, as iproute2 commands: the
// addresses of lo, then the policy rule and the route of Routing.
func (p *FamilyRuleset) IPCommands() []string {
	if p == nil {
		return nil
	}
	ip, every := "ip ", "0.0.0.0/0"
	if p.Family == IPv6 {
		ip, every = "ip -6 ", "::/0"
	}
	var lines []string
	for _, a := range p.LoopbackAddrs {
		lines = append(lines, ip+"addr add "+netip.PrefixFrom(a, a.BitLen()).String()+" dev lo")
	}
	r := p.Routing
	if r == nil {
		return lines
	}
	mark := string(appendHex(nil, r.Mark))
	if r.Mask != 0 && r.Mask != FullMask {
		mark += "/" + string(appendHex(nil, r.Mask))
	}
	if r.Priority != 0 {
		mark += " pref " + decimal(r.Priority)
	}
	table := decimal(r.Table)
	return append(lines, ip+"rule add fwmark "+mark+" lookup "+table, ip+"route add local "+every+" dev lo table "+table)
}
