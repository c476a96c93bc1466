package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

func decimal(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

// ErrForeign says that a rule uses a match or target outside this package's
// model, so that what it does is not known here; check with
// errors.Is(err, ruleset.ErrForeign). Parse keeps such rules as text.
var ErrForeign = errors.New("outside the model of a mesh's rules")

// Saved is what iptables-save prints: every table in use, rules of others
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

	// at is where chains are by their names, while the table is read.
	at map[string]int
}

// SavedChain is a chain as saved. Policy is "-" for a chain that is not built in.
type SavedChain struct {
	Name   string
	Policy string
	Rules  []SavedRule
}

// SavedRule is a rule as saved. Text is the line without "-A CHAIN". Known says
// whether Rule is its meaning. The text is then put together from the words that
// were understood: it names the rule to iptables as found, and can be given back to it.
// When not, the rule is [ErrForeign] and its text is for people only.
type SavedRule struct {
	Text  string
	Rule  Rule
	Known bool
}

// chain returns a chain, or nil if there is none of the name.
func (s *Saved) chain(table Table, name string) *SavedChain { return chainOf(s.chains(table), name) }

func chainOf(chains []SavedChain, name string) *SavedChain {
	if i := slices.IndexFunc(chains, func(c SavedChain) bool { return c.Name == name }); i >= 0 {
		return &chains[i]
	}
	return nil
}

// Parse reads the output of iptables-save or ip6tables-save, or the text of a
// [Program]. A line that is no such output is an error that gives its number;
// a rule outside the model is no error (see [SavedRule]). Chains are names that
// the caller knows of the kernel to be there; they are needed for names with a line
// feed. Where a name has anything that would separate words, a "?" stands for it.
func Parse(f Family, text string, chains ...string) (*Saved, error) {
	text, err := maskNames(text, chains)
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
		if quoted || strings.HasPrefix(line, "-A ") {
			if quoted = quoteOpen(line, quoted); quoted {
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
	if line[0] == '[' { // iptables-save -c puts counters first
		if _, rest, ok := strings.Cut(line, "] "); ok {
			line = rest
		}
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
		saved := SavedRule{Text: rule}
		switch r, words, err := parseRule(f, rule); {
		case err == nil:
			saved = SavedRule{Text: wordsText(words), Rule: r, Known: true}
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
	if IsBuiltin(name) {
		policy = "ACCEPT"
	}
	t.Chains = append(t.Chains, SavedChain{Name: name, Policy: policy})
	return &t.Chains[len(t.Chains)-1]
}

// ParseRule reads a rule in iptables-save's words, without "-A CHAIN". A match
// or target that it does not know makes it fail with [ErrForeign].
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
	rule   Rule
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
	var err error
	switch w {
	case "-s":
		err = p.prefix(&r.Src, not)
	case "-d":
		err = p.prefix(&r.Dst, not)
	case "-i":
		err = p.iface(&r.In, not)
	case "-o":
		err = p.iface(&r.Out, not)
	case "-p":
		if not {
			return fmt.Errorf("negated protocol: %w", ErrForeign)
		}
		return p.proto()
	case "-m":
		switch m := p.next(); m {
		case "tcp", "udp", "multiport", "addrtype", "conntrack", "mark", "connmark", "owner":
			if m == "mark" || m == "connmark" {
				p.words = append([]string{"match:" + m}, p.words...)
			}
			p.not = not
			return nil
		default:
			return fmt.Errorf("match %q: %w", m, ErrForeign)
		}
	case "match:mark":
		return p.mark(&r.Mark)
	case "match:connmark":
		return p.mark(&r.ConnMark)
	case "--sport", "--sports":
		err = p.ports(&r.SrcPorts, not)
	case "--dport", "--dports":
		err = p.ports(&r.DstPorts, not)
	case "--src-type":
		err = p.addrType(&r.SrcType, not)
	case "--dst-type":
		err = p.addrType(&r.DstType, not)
	case "--ctstate":
		if not || r.States != 0 {
			return fmt.Errorf("negated or second state: %w", ErrForeign)
		}
		r.States, err = parseStates(p.next())
	case "--uid-owner":
		err = p.owner(UID, not)
	case "--gid-owner":
		err = p.owner(GID, not)
	case "-j":
		if not {
			return fmt.Errorf("negated target: %w", ErrForeign)
		}
		return p.target()
	default:
		return fmt.Errorf("option %q: %w", w, ErrForeign)
	}
	return err
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
	if not {
		*m = NotPrefix(prefix)
	} else {
		*m = Prefix(prefix)
	}
	return nil
}

func (p *ruleParser) iface(m *InterfaceMatch, not bool) error {
	w := p.next()
	// A rule of others may ask for a name that no interface has (dev_valid_name of the kernel), or that would have to be
	// quoted: none of ours does.
	if w == "" || strings.HasSuffix(w, "+") || strings.ContainsFunc(w, unsafeRune) || !m.IsZero() {
		return fmt.Errorf("interface %q: %w", w, ErrForeign)
	}
	*m = InterfaceMatch{Name: w, Not: not}
	return nil
}

func (p *ruleParser) proto() error {
	switch w := p.next(); w {
	case "all", "0":
		p.rule.Proto = AnyProto
	case "tcp", "6":
		p.rule.Proto = TCP
	case "udp", "17":
		p.rule.Proto = UDP
	default:
		n, err := strconv.ParseUint(w, 10, 8)
		if err != nil {
			return fmt.Errorf("protocol %q: %w", w, ErrForeign)
		}
		p.rule.Proto = Proto(n)
	}
	return nil
}

func (p *ruleParser) ports(m *PortMatch, not bool) error {
	if !m.IsZero() {
		return fmt.Errorf("second port match: %w", ErrForeign)
	}
	for part := range strings.SplitSeq(p.next(), ",") {
		first, last, isRange := strings.Cut(part, ":")
		if !isRange {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || b < a {
			return fmt.Errorf("ports %q: %w", part, ErrForeign)
		}
		m.Ranges = append(m.Ranges, PortRange{uint16(a), uint16(b)})
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
	*t = Local
	if not {
		*t = NotLocal
	}
	return nil
}

func (p *ruleParser) mark(m *MarkMatch) error {
	w := p.next()
	not := w == "!"
	if not {
		w = p.next()
	}
	if w != "--mark" || !m.IsZero() {
		return fmt.Errorf("mark option %q: %w", w, ErrForeign)
	}
	value, mask, err := parseMark(p.next())
	if err != nil {
		return err
	}
	*m = MarkMatch{Value: value, Mask: mask, Not: not}
	if mask == 0 {
		return fmt.Errorf("mark with mask 0: %w", ErrForeign)
	}
	return nil
}

func parseMark(w string) (value, mask uint32, err error) {
	v, m, masked := strings.Cut(w, "/")
	mask = FullMask
	n, err1 := strconv.ParseUint(v, 0, 32)
	if masked {
		k, err2 := strconv.ParseUint(m, 0, 32)
		mask, err1 = uint32(k), errors.Join(err1, err2)
	}
	if err1 != nil {
		return 0, 0, fmt.Errorf("mark %q: %w", w, ErrForeign)
	}
	return uint32(n), mask, nil
}

func parseStates(w string) (States, error) {
	var s States
next:
	for name := range strings.SplitSeq(w, ",") {
		for i, n := range stateNames {
			if n == name {
				s |= 1 << i
				continue next
			}
		}
		return 0, fmt.Errorf("state %q: %w", name, ErrForeign)
	}
	return s, nil
}

func (p *ruleParser) owner(k OwnerKind, not bool) error {
	w := p.next()
	first, last, isRange := strings.Cut(w, "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 32)
	b, err2 := strconv.ParseUint(last, 10, 32)
	if err1 != nil || err2 != nil || b < a {
		return fmt.Errorf("owner %q: %w", w, ErrForeign)
	}
	p.rule.Owner = append(p.rule.Owner, OwnerMatch{Kind: k, First: uint32(a), Last: uint32(b), Not: not})
	return nil
}
