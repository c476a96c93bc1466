package ruleset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// LiveRule is a rule found in a kernel, or in a file of saved rules. A chain's policy that drops is one too, after the chain's others.
type LiveRule struct {
	// Backend is iptables-nft, iptables-legacy or nftables; iptables for a rule of a file, which does not tell.
	Backend Backend `json:"backend"`
	// Family is zero for a rule of nftables that applies to both families.
	Family Family `json:"family,omitempty"`
	// Table is "nat" for iptables, "inet istio" for nftables.
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Hook is that of a base chain of nftables.
	Hook *Hook `json:"hook,omitempty"`
	// Position is the rule's place in its chain, from 1.
	Position int `json:"position"`
	// Handle is the kernel's number of a rule of nftables.
	Handle uint64 `json:"handle,omitempty"`
	// Text is the rule as iptables-save prints it, without "-A CHAIN", or in words close to nft's.
	Text string `json:"rule"`
	// Rules do the same in the model, in each of the rule's families. One of nftables with a set, or with several statements, is
	// several. None: the rule is outside the model, and Foreign says why.
	Rules   []Rule `json:"-"`
	Foreign string `json:"foreign,omitempty"`
	// Known stands for a rule outside the model: it matches whatever that one does, and nothing else if Matches is set. Its action
	// is none of the model's if it is not known. Both are lost in JSON.
	Known   Rule `json:"-"`
	Matches bool `json:"-"`
	// Unread: it stands for rules of others that are in the chain, or may be, and were not read, since they are too many.
	Unread bool `json:"unread,omitempty"`
	// Action is that of the rule, known for many rules outside the model too, or empty. JumpTo is the chain of a jump.
	Action string `json:"action,omitempty"`
	JumpTo string `json:"jumpTo,omitempty"`
	// Counters is nil for a rule that has no counter: nftables counts only where a rule says so, and the rules that this module
	// writes do not.
	Counters *Counters `json:"counters,omitempty"`
	// Since is set by [Live.Since].
	Since *Counters `json:"since,omitempty"`
	// Ours is set for a rule of the owner of a wanted ruleset.
	Ours bool `json:"ours"`
	// Reason explains one of our rules, if it is known: it is the comment of the same rule in the wanted ruleset, or in the kernel.
	Reason string `json:"reason,omitempty"`

	// plain: iptables' words of a rule without comment, all of them understood, so that Text can be given back to iptables.
	plain bool
}

// Hook declares a base chain of nftables. Type, Point and Policy are nft's words: "nat", "output", "accept".
type Hook struct {
	Type     string `json:"type"`
	Point    string `json:"point"`
	Priority int32  `json:"priority"`
	Policy   string `json:"policy"`
}

// String returns for example "type nat hook output priority -100".
func (h Hook) String() string {
	return fmt.Sprintf("type %s hook %s priority %d", h.Type, h.Point, h.Priority)
}

// Counters counts the matches of a rule since it was made.
type Counters struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Captures reports whether the rule sends packets to a proxy.
func (r *LiveRule) Captures() bool {
	return r.Action == ActionRedirect.String() || r.Action == ActionDNAT.String() || r.Action == ActionTProxy.String()
}

// jsonLiveRule has the rules of the model as iptables' text, without jumps: not every name of a chain can be told from other words.
type jsonLiveRule struct {
	plainLiveRule
	Rules []string `json:"rules,omitempty"`
}

type plainLiveRule LiveRule

// MarshalJSON writes the rules of the model as their text.
func (r LiveRule) MarshalJSON() ([]byte, error) {
	out := jsonLiveRule{plainLiveRule: plainLiveRule(r)}
	for _, rule := range r.Rules {
		if rule.Target.Action == ActionJump {
			rule.Target = Target{}
		}
		out.Rules = append(out.Rules, rule.full(cmp.Or(r.Family, IPv4)))
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON of any version wrote. A rule or family that this version does not know is outside the model.
func (r *LiveRule) UnmarshalJSON(b []byte) error {
	var in jsonLiveRule
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("live rule from JSON: %w", err)
	}
	*r = LiveRule(in.plainLiveRule)
	if r.Family != 0 && !slices.Contains(Families[:], r.Family) {
		in.Rules, r.Foreign = nil, "its family is not known"
	}
	for _, text := range in.Rules {
		rule, err := ParseRule(cmp.Or(r.Family, IPv4), text)
		if err != nil {
			r.Rules, r.Foreign = nil, foreignReason(err)
			break
		}
		if r.Action == ActionJump.String() && rule.Target == (Target{}) {
			rule.Target = Target{Action: ActionJump, Chain: r.JumpTo}
		}
		r.Rules = append(r.Rules, rule)
	}
	if len(r.Rules) == 0 {
		r.Foreign = cmp.Or(r.Foreign, "not understood")
	}
	return nil
}

// foreignReason is the error of [ParseRule] without what every such error says.
func foreignReason(err error) string {
	s := strings.TrimSuffix(err.Error(), ": "+ErrForeign.Error())
	if i := strings.Index(s, `": `); i >= 0 && strings.HasPrefix(s, `rule "`) {
		s = s[i+3:]
	}
	return s
}

// String names the rule and says why it is not understood, if it is not.
func (r LiveRule) String() string {
	s := r.Table + "/" + r.Chain + ": " + r.Text
	if len(r.Rules) == 0 {
		s += " (" + cmp.Or(r.Foreign, "not understood") + ")"
	}
	if r.Family != 0 && r.Backend != BackendNftables { // whose table names it
		s = r.Family.String() + " " + s
	}
	return s
}

// Live are the rules of a namespace, in the order of their chains.
type Live []LiveRule

// Since sets what the rules have matched since an earlier look, if there was one. A counter that decreased belongs to a new rule.
func (l Live) Since(before Live) {
	type key struct {
		backend            Backend
		family             Family
		table, chain, rule string
		position           int
	}
	at := func(r *LiveRule) key { return key{r.Backend, r.Family, r.Table, r.Chain, r.Text, r.Position} }
	was := map[key]Counters{}
	for i := range before {
		if r := &before[i]; r.Counters != nil {
			was[at(r)] = *r.Counters
		}
	}
	for i := range l {
		if r := &l[i]; before != nil && r.Counters != nil {
			old := was[at(r)]
			if r.Counters.Packets < old.Packets {
				old = Counters{}
			}
			r.Since = &Counters{Packets: r.Counters.Packets - old.Packets, Bytes: r.Counters.Bytes - old.Bytes}
		}
	}
}

// Write writes the rules for people, with a heading for each table of a backend.
func (l Live) Write(to io.Writer) error {
	w := visible.To(to)
	if len(l) == 0 {
		w.Printf("no rules\n")
		return w.Err()
	}
	table := w.Table()
	title := ""
	for _, r := range l {
		t := string(r.Backend) + ", table " + r.Table
		if r.Backend != BackendNftables { // whose tables may have rules of both families
			t = fmt.Sprintf("%s, %s, table %s", r.Backend, r.Family, r.Table)
		}
		if t != title {
			title = t
			table.Printf("%s\n  CHAIN\t#\tPACKETS\tBYTES\tRULE\tWHY\n", title)
		}
		packets, bytes := "-", "-"
		if c := r.Counters; c != nil {
			packets, bytes = strconv.FormatUint(c.Packets, 10), strconv.FormatUint(c.Bytes, 10)
			if r.Since != nil && r.Since.Packets > 0 {
				packets += fmt.Sprintf(" (+%d)", r.Since.Packets)
				bytes += fmt.Sprintf(" (+%d)", r.Since.Bytes)
			}
		}
		why := r.Reason
		if !r.Ours {
			why = "not the mesh's"
		}
		table.Printf("  %s\t%d\t%s\t%s\t%s\t%s\n", r.Chain, r.Position, packets, bytes, r.Text, why)
	}
	return table.Flush()
}

// ForeignError lists rules that cannot be traced. It is [ErrForeign]. Get at it with errors.As(err, &foreign), where foreign is a
// *ruleset.ForeignError.
type ForeignError struct{ Rules Live }

// Error lists the rules, one a line, whatever characters they have.
func (e *ForeignError) Error() string {
	lines := []string{fmt.Sprintf("%d saved rules are outside the model, so what they do to a packet is not known:", len(e.Rules))}
	for _, r := range e.Rules {
		lines = append(lines, visible.Line(r.String()))
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes it [ErrForeign].
func (e *ForeignError) Unwrap() error { return ErrForeign }

// LiveChain is a chain found in a kernel, or in a file of saved rules, with all its rules.
type LiveChain struct {
	// Family is zero for a chain of nftables.
	Family Family
	// Table is as in [LiveRule]; it may be none of [Tables] ("security").
	Table, Name string
	// Policy is that of a base chain in lower case, else empty. Hook is that of a base chain of nftables.
	Policy string
	Hook   *Hook
	Rules  []LiveRule
}

// LiveChains are chains of a namespace, also those of others. None is a namespace without tables.
type LiveChains []LiveChain

// of returns the chains of a table.
func (l LiveChains) of(table Table) (in LiveChains) {
	for _, c := range l {
		if c.Table == table.String() {
			in = append(in, c)
		}
	}
	return in
}

// named returns a chain, or nil if there is none of the name.
func (l LiveChains) named(name string) *LiveChain {
	if i := slices.IndexFunc(l, func(c LiveChain) bool { return c.Name == name }); i >= 0 {
		return &l[i]
	}
	return nil
}

// chains groups the rules, in the order of their tables.
func (l Live) chains() (all []*LiveChain) {
	known := map[liveChainName]*LiveChain{}
	for _, r := range l {
		key := liveChainName{r.Family, r.Table, r.Chain}
		if r.Backend == BackendNftables {
			key.family = 0
		}
		c := known[key]
		if c == nil {
			c = &LiveChain{Family: key.family, Table: r.Table, Name: r.Chain, Hook: r.Hook}
			known[key] = c
			all = append(all, c)
		}
		c.Rules = append(c.Rules, r)
	}
	slices.SortStableFunc(all, func(a, b *LiveChain) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table))
	})
	return all
}

// Ruleset returns the rules as a ruleset, for a comparison. A base chain of nftables becomes the built-in chain whose place at the
// hook it has. Policy routing and addresses of lo are not among the rules, so these are copied from beside, the ruleset to compare with.
//
// After a rule that hands packets to a transparent proxy nftables goes on if the proxy does not listen, where iptables
// drops the packet. The model takes it that the proxy listens.
//
// The error is a [*ForeignError], or says that the rules are of more than one backend: which of them sees a packet first is not known.
func (l Live) Ruleset(beside Ruleset) (Ruleset, error) {
	var rs Ruleset
	for _, f := range Families {
		p := &FamilyRuleset{Family: f}
		if o := beside.Family(f); o != nil {
			p.Routing, p.LoopbackAddrs = o.Routing, o.LoopbackAddrs
		}
		rs.Set(p)
	}
	for i := range l {
		if l[i].Backend != l[0].Backend {
			return Ruleset{}, fmt.Errorf("they are of several programs: %s and %s", l[0].Backend, l[i].Backend)
		}
	}
	var foreign Live
	switch {
	case len(l) == 0:
	case l[0].Backend == BackendNftables:
		foreign = l.fromNFT(rs)
	case strings.HasPrefix(string(l[0].Backend), string(BackendIptables)): // any variant
		foreign = l.fromIptables(rs)
	default:
		return Ruleset{}, fmt.Errorf("they are of %s, which is not known", l[0].Backend)
	}
	if len(foreign) > 0 {
		return Ruleset{}, &ForeignError{foreign}
	}
	return rs, nil
}

func (l Live) fromIptables(rs Ruleset) (foreign Live) {
	for _, c := range l.chains() {
		table, err := ParseTable(c.Table)
		chain := Chain{Table: table, Name: c.Name}
		for _, r := range c.Rules {
			if err != nil {
				r.Rules, r.Foreign = nil, "its table is not known"
			}
			if len(r.Rules) == 0 {
				foreign = append(foreign, r)
			}
			chain.Rules = append(chain.Rules, r.Rules...)
		}
		p := rs.Family(c.Family)
		if p == nil {
			return append(foreign, c.Rules...)
		}
		p.Chains = append(p.Chains, chain)
	}
	for _, f := range Families {
		rs.Family(f).addEmpty()
	}
	return foreign
}

// addEmpty adds the chains without rules to which rules jump.
func (p *FamilyRuleset) addEmpty() {
	for _, c := range p.Chains {
		for _, r := range c.Rules {
			if t := r.Target; t.Action == ActionJump && p.Chain(c.Table, t.Chain) == nil {
				p.Chains = append(p.Chains, Chain{Table: c.Table, Name: t.Chain})
			}
		}
	}
	slices.SortStableFunc(p.Chains, func(a, b Chain) int { return cmp.Compare(a.Table, b.Table) })
}

// Live returns the rules of the chains, of a backend. A rule that jumps to a chain that is not among them is outside the model. The
// wanted rulesets say which rules of iptables are ours and why they are there: the last one that has a rule explains it.
func (l LiveChains) Live(b Backend, wanted ...Ruleset) (all Live) {
	there := map[liveChainName]bool{}
	for _, c := range l {
		there[liveChainName{c.Family, c.Table, c.Name}] = true
	}
	predecessors := make([]bool, len(wanted))
	wanted = slices.Clone(wanted)
	for i, rs := range wanted {
		wanted[i], predecessors[i] = rs.orPlain(), rs.Owner().predecessor(l)
	}
	for i := range l {
		c := &l[i]
		first := len(all)
		for _, r := range c.Rules {
			r.Backend, r.Hook = b, c.Hook
			if len(r.Rules) > 0 && r.JumpTo != "" && !there[liveChainName{c.Family, c.Table, r.JumpTo}] {
				r.Rules, r.Foreign = nil, "there is no such chain"
			}
			all = append(all, r)
		}
		if c.Policy != "" && c.Policy != ActionAccept.String() {
			all = append(all, LiveRule{
				Backend: b, Family: c.Family, Table: c.Table, Chain: c.Name, Hook: c.Hook, Position: len(c.Rules) + 1,
				Text: "policy " + c.Policy, Action: c.Policy, Foreign: "policies other than accept are not known",
			})
		}
		table, err := ParseTable(c.Table)
		for w, rs := range wanted {
			if err != nil {
				break
			}
			for _, r := range rs.Owner().rules(c, predecessors[w]) {
				at := &all[first+r.Position-1]
				at.Ours, at.Reason = true, rs.Family(c.Family).reason(table, r)
			}
		}
	}
	return all
}

// reason is the comment of the same rule in the program.
func (p *FamilyRuleset) reason(table Table, live *LiveRule) string {
	if p == nil {
		return ""
	}
	if c := p.Chain(table, live.Chain); c != nil {
		if i := slices.IndexFunc(c.Rules, live.is); i >= 0 {
			return c.Rules[i].Comment
		}
	}
	return ""
}
