package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

func decimal(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

// ErrForeign says that a rule uses a match or target outside this package's model, so its effect is
// unknown. Check with errors.Is(err, ruleset.ErrForeign). Parse keeps such rules as text.
var ErrForeign = errors.New("outside the model of a mesh's rules")

// Saved is the output of iptables-save: every table in use, rules of others
// included. The zero value is a namespace without tables.
type Saved struct {
	Family Family
	Tables []SavedTable
}

// SavedTable is one table of an iptables-save output.
type SavedTable struct {
	// Name is the table's, which may be none of [Tables] ("security").
	Name   string
	Chains []SavedChain

	// at holds the chains' indexes by name, while the table is read.
	at map[string]int
}

// SavedChain is a chain as saved. Policy is "-" for a chain that is not built in.
type SavedChain struct {
	Name   string
	Policy string
	Rules  []SavedRule
}

// SavedRule is a rule as saved. Text is the line without "-A CHAIN". If Known, Rule is
// its meaning, and Text is made of the words that were understood, so that it can be
// given back to iptables. If not, the rule is [ErrForeign] and Text is for people only.
type SavedRule struct {
	Text  string
	Rule  Rule
	Known bool
	// Packets and Bytes are what it has matched, if the output has that (iptables-save -c). Otherwise they are 0.
	Packets, Bytes uint64
}

// chains returns the chains of a table.
func (s *Saved) chains(table Table) []SavedChain {
	if s != nil {
		for i := range s.Tables {
			if s.Tables[i].Name == table.String() {
				return s.Tables[i].Chains
			}
		}
	}
	return nil
}

// chain returns a chain, or nil if there is none of the name.
func (s *Saved) chain(table Table, name string) *SavedChain { return chainOf(s.chains(table), name) }

func chainOf(chains []SavedChain, name string) *SavedChain {
	if i := slices.IndexFunc(chains, func(c SavedChain) bool { return c.Name == name }); i >= 0 {
		return &chains[i]
	}
	return nil
}

// Parse parses the output of iptables-save or ip6tables-save, or the text of a [Program]. The error gives the number of
// a line that is not such output. A rule outside the model is not an error (see [SavedRule]). Reported are the chains' names that the
// kernel reports, which are needed for names with a line feed. In names, "?" replaces whatever would separate words.
func Parse(f Family, text string, reported ...string) (*Saved, error) {
	text, err := maskNames(text, reported)
	if err != nil {
		return nil, fmt.Errorf("parse saved rules: %w", err)
	}
	saved := &Saved{Family: f}
	var table *SavedTable
	n, first, from, to, quoted := 0, 0, 0, 0, false
	for line := range strings.Lines(text) {
		if n++; !quoted {
			first, from = n, to
		}
		to += len(line)
		// A string may hold line feeds; iptables-save quotes it.
		if quoted || chains.IsRule(line) {
			if quoted = chains.QuoteOpen(line, quoted); quoted {
				continue
			}
		}
		line = strings.TrimSpace(text[from:to])
		if line == "" || line[0] == '#' {
			continue
		}
		if err := saved.parseLine(f, &table, line); err != nil {
			return nil, fmt.Errorf("parse saved rules: line %d: %w", first, err)
		}
	}
	if quoted {
		return nil, fmt.Errorf("parse saved rules: line %d: rule whose quote is not closed", first)
	}
	if table != nil {
		return nil, fmt.Errorf("parse saved rules: table %s has no COMMIT", table.Name)
	}
	return saved, nil
}

func (s *Saved) parseLine(f Family, table **SavedTable, line string) error {
	if line[0] == '*' {
		if *table != nil {
			return fmt.Errorf("table %s has no COMMIT", (*table).Name)
		}
		*table = s.open(line[1:])
		return nil
	}
	if *table == nil {
		return fmt.Errorf("%q outside a table", line)
	}
	if line == "COMMIT" {
		(*table).at = nil
		*table = nil
		return nil
	}
	var saved SavedRule
	if counters, rest, ok := strings.Cut(line, "] "); ok && line[0] == '[' { // iptables-save -c puts them first
		packets, bytes, _ := strings.Cut(counters[1:], ":")
		saved.Packets, _ = strconv.ParseUint(packets, 10, 64)
		saved.Bytes, _ = strconv.ParseUint(bytes, 10, 64)
		line = rest
	}
	switch {
	case line[0] == ':':
		name, policy, err := parseChainLine(line)
		if err != nil {
			return err
		}
		(*table).open(name).Policy = policy
		return nil
	case strings.HasPrefix(line, "-A "):
		name, rule, _ := strings.Cut(line[3:], " ")
		c := (*table).open(name)
		saved.Text = rule
		switch r, words, err := parseRule(f, rule); {
		case err == nil:
			saved.Text, saved.Rule, saved.Known = wordsText(words), r, true
		case !errors.Is(err, ErrForeign):
			return err
		}
		c.Rules = append(c.Rules, saved)
		return nil
	}
	return fmt.Errorf("%q is neither chain, rule nor COMMIT", line)
}

func (s *Saved) open(name string) *SavedTable {
	for i := range s.Tables {
		if s.Tables[i].Name == name {
			return &s.Tables[i]
		}
	}
	s.Tables = append(s.Tables, SavedTable{Name: name})
	return &s.Tables[len(s.Tables)-1]
}

func (t *SavedTable) open(name string) *SavedChain {
	if t.at == nil {
		t.at = map[string]int{}
		for i := range t.Chains {
			t.at[t.Chains[i].Name] = i
		}
	}
	if i, ok := t.at[name]; ok {
		return &t.Chains[i]
	}
	t.at[name] = len(t.Chains)
	policy := "-"
	if chains.IsBuiltin(name) {
		policy = "ACCEPT"
	}
	t.Chains = append(t.Chains, SavedChain{Name: name, Policy: policy})
	return &t.Chains[len(t.Chains)-1]
}

// ParseRule parses a rule as iptables-save prints it, without "-A CHAIN". An unknown match or target is [ErrForeign].
func ParseRule(f Family, text string) (Rule, error) {
	r, _, err := parseRule(f, text)
	return r, err
}

func parseRule(f Family, text string) (r Rule, words []string, err error) {
	if words, err = splitWords(text); err != nil {
		return Rule{}, nil, fmt.Errorf("rule %q: %w", text, err)
	}
	p := ruleParser{family: f, words: words}
	for len(p.words) > 0 {
		if err := p.option(); err != nil {
			return Rule{}, nil, fmt.Errorf("rule %q: %w", text, err)
		}
	}
	if r := p.rule; (!r.SrcPorts.IsZero() || !r.DstPorts.IsZero()) && r.Proto != TCP && r.Proto != UDP {
		return Rule{}, nil, fmt.Errorf("rule %q: ports of protocol %s: %w", text, r.Proto, ErrForeign)
	}
	return p.rule, words, nil
}

type ruleParser struct {
	family Family
	words  []string
	not    bool
	// mark is the match that --mark belongs to: "mark" or "connmark".
	mark string
	rule Rule
}

func (p *ruleParser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

// option reads one option with its value. A "!" applies to the next option.
func (p *ruleParser) option() error {
	w := p.next()
	if w == "!" {
		if p.not {
			return fmt.Errorf("double negation")
		}
		p.not = true
		return nil
	}
	not := p.not
	p.not = false
	r := &p.rule
	switch w {
	case "-p", "--ctstate", "-j":
		if not {
			return fmt.Errorf("negated %s: %w", w, ErrForeign)
		}
	}
	switch w {
	case "-s":
		return p.prefix(&r.Src, not)
	case "-d":
		return p.prefix(&r.Dst, not)
	case "-i":
		return p.iface(&r.In, not)
	case "-o":
		return p.iface(&r.Out, not)
	case "-p":
		return p.proto()
	case "-m":
		p.not = not
		return p.module()
	case "--mark":
		return p.markMatch(not)
	case "--sport", "--sports":
		return p.ports(&r.SrcPorts, not)
	case "--dport", "--dports":
		return p.ports(&r.DstPorts, not)
	case "--src-type":
		return p.addrType(&r.SrcType, not)
	case "--dst-type":
		return p.addrType(&r.DstType, not)
	case "--ctstate":
		return p.states()
	case "--uid-owner":
		return p.owner(UID, not)
	case "--gid-owner":
		return p.owner(GID, not)
	case "-j":
		return p.target()
	}
	return fmt.Errorf("option %q: %w", w, ErrForeign)
}

func (p *ruleParser) module() error {
	switch m := p.next(); m {
	case "tcp", "udp", "multiport", "addrtype", "conntrack", "owner":
	case "mark", "connmark":
		p.mark = m
		// Without its option, to accept the match would be to drop it.
		if next := p.words; len(next) == 0 || next[0] != "--mark" && (len(next) < 2 || next[0] != "!" || next[1] != "--mark") {
			return fmt.Errorf("match %q without --mark: %w", m, ErrForeign)
		}
	default:
		return fmt.Errorf("match %q: %w", m, ErrForeign)
	}
	return nil
}

func (p *ruleParser) prefix(m *PrefixMatch, not bool) error {
	if !m.IsZero() {
		return fmt.Errorf("second address: %w", ErrForeign)
	}
	w := p.next()
	prefix, err := netip.ParsePrefix(w)
	if err != nil {
		a, aerr := netip.ParseAddr(w)
		if aerr != nil { // a netmask such as 255.0.255.0, which has no length
			return fmt.Errorf("address %q: %w", w, ErrForeign)
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if FamilyOf(prefix.Addr()) != p.family || prefix.Addr().Zone() != "" {
		return fmt.Errorf("address %q is not %s: %w", w, p.family, ErrForeign)
	}
	if *m = Prefix(prefix); not {
		*m = PrefixMatch{Prefix: prefix.Masked(), Not: true}
	}
	return nil
}

// iface refuses the wildcard of all interfaces, and names that no interface can have (the kernel's
// dev_valid_name) or that need quotes. A mesh's rules have none of these.
func (p *ruleParser) iface(m *InterfaceMatch, not bool) error {
	w := p.next()
	if name := strings.TrimSuffix(w, "+"); name == "" || strings.ContainsFunc(name, chains.UnsafeRune) || !m.IsZero() {
		return fmt.Errorf("interface %q: %w", w, ErrForeign)
	}
	*m = InterfaceMatch{Name: w, Not: not}
	return nil
}

func (p *ruleParser) proto() error {
	w := p.next()
	for _, known := range []Proto{AnyProto, TCP, UDP} {
		if w == known.String() {
			p.rule.Proto = known
			return nil
		}
	}
	n, err := strconv.ParseUint(w, 10, 8)
	if err != nil {
		return fmt.Errorf("protocol %q: %w", w, ErrForeign)
	}
	p.rule.Proto = Proto(n)
	return nil
}

// parseRange reads "first", or "first", sep and "last".
func parseRange(s, sep string, bits int) (first, last uint64, ok bool) {
	a, b, isRange := strings.Cut(s, sep)
	if !isRange {
		b = a
	}
	first, err1 := strconv.ParseUint(a, 10, bits)
	last, err2 := strconv.ParseUint(b, 10, bits)
	return first, last, err1 == nil && err2 == nil && first <= last
}

func (p *ruleParser) ports(m *PortMatch, not bool) error {
	if !m.IsZero() {
		return fmt.Errorf("second port match: %w", ErrForeign)
	}
	for part := range strings.SplitSeq(p.next(), ",") {
		first, last, ok := parseRange(part, ":", 16)
		if !ok {
			return fmt.Errorf("ports %q: %w", part, ErrForeign)
		}
		m.Ranges = append(m.Ranges, PortRange{uint16(first), uint16(last)})
	}
	if m.Not = not; !not {
		*m = Ports(m.Ranges...)
	}
	return nil
}

func (p *ruleParser) addrType(t *AddrType, not bool) error {
	if w := p.next(); w != "LOCAL" || *t != AnyType {
		return fmt.Errorf("address type %q: %w", w, ErrForeign)
	}
	if *t = Local; not {
		*t = NotLocal
	}
	return nil
}

func (p *ruleParser) markMatch(not bool) error {
	value, mask, err := parseMark(p.next())
	if err != nil {
		return err
	}
	to := &p.rule.Mark
	if p.mark == "connmark" {
		to = &p.rule.ConnMark
	}
	if p.mark == "" || !to.IsZero() || mask == 0 {
		return fmt.Errorf("mark without its match, given twice or with mask 0: %w", ErrForeign)
	}
	*to = MarkMatch{Value: value, Mask: mask, Not: not}
	return nil
}

func parseMark(w string) (value, mask uint32, err error) {
	v, m, masked := strings.Cut(w, "/")
	if !masked {
		m = "0xffffffff"
	}
	a, err1 := strconv.ParseUint(v, 0, 32)
	b, err2 := strconv.ParseUint(m, 0, 32)
	if err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("mark %q: %w", w, ErrForeign)
	}
	return uint32(a), uint32(b), nil
}

func (p *ruleParser) states() error {
	if p.rule.States != 0 {
		return fmt.Errorf("second state: %w", ErrForeign)
	}
	for name := range strings.SplitSeq(p.next(), ",") {
		i := slices.Index(stateNames[:], name)
		if i < 0 {
			return fmt.Errorf("state %q: %w", name, ErrForeign)
		}
		p.rule.States |= 1 << i
	}
	return nil
}

func (p *ruleParser) owner(k OwnerKind, not bool) error {
	w := p.next()
	first, last, ok := parseRange(w, "-", 32)
	if !ok {
		return fmt.Errorf("owner %q: %w", w, ErrForeign)
	}
	p.rule.Owner = append(p.rule.Owner, OwnerMatch{Kind: k, First: uint32(first), Last: uint32(last), Not: not})
	return nil
}
