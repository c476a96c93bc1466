package apply

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Live lists all rules in a namespace with their counters: those of both iptables variants, then
// those of nftables. The wanted rulesets say which rules are ours and why they are there; to ask
// for an owner's rules without reasons, pass [ruleset.Owner.EmptyRuleset].
//
// It is for people to look at and starts several iptables processes. It changes nothing, and asks
// only for tables that exist. Rules that could be read are returned beside the error about those
// that could not, for which errors.Is(err, apply.ErrNoBackend) holds where the host lacks the
// programs of a variant that is in use.
func Live(ctx context.Context, ns Namespace, o Options, wanted ...ruleset.Ruleset) ([]LiveRule, error) {
	if err := o.reachable(); err != nil {
		return nil, fmt.Errorf("list live rules: %w", err)
	}
	h, err := look(ns)
	if err != nil {
		return nil, fmt.Errorf("list live rules: %w", err)
	}
	var all []LiveRule
	var errs []error
	for _, variant := range []Name{IptablesNFT, IptablesLegacy} {
		for _, f := range ruleset.Families {
			if h.uses(variant, f) {
				rules, err := liveIPTables(ctx, ns, o, variant, f, wanted)
				all, errs = append(all, rules...), append(errs, err)
			}
		}
	}
	if !h.noNFT {
		rules, err := liveNFTables(ctx, ns, wanted)
		all, errs = append(all, rules...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return all, fmt.Errorf("list live rules: %w", err)
	}
	return all, nil
}

// liveIPTables lists the rules of one variant and family. Like every text of
// rules from a pod's namespace, this one counts only if the kernel agrees.
func liveIPTables(ctx context.Context, ns Namespace, o Options, variant Name, f ruleset.Family, wanted []ruleset.Ruleset) (all []LiveRule, err error) {
	b, err := newIPTables(ns, variant, o)
	if err != nil {
		return nil, err
	}
	path, ok := o.applet(variant, programs[f], "")
	if !ok {
		return nil, fmt.Errorf("%w: %s: no %s of this variant in %s", ErrNoBackend, variant, programs[f], o.where())
	}
	err = b.session(ctx, func(s *session) (err error) {
		all, err = s.live(ctx, path, f, wanted)
		return err
	})
	return all, err
}

func (s *session) live(ctx context.Context, path string, f ruleset.Family, wanted []ruleset.Ruleset) ([]LiveRule, error) {
	variant := s.tools.variant
	var counted chainRules
	var err error
	if variant == IptablesNFT {
		counted, err = kernelRules(ctx, s.ns, nfProto(f))
	} else {
		err = s.measureLegacy(f)
	}
	if err != nil {
		return nil, err
	}
	text, counters, err := s.listIPTables(ctx, path, f, s.host.tableNames(variant, f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	live, err := ruleset.Parse(f, text)
	if err != nil {
		return nil, err
	}
	if variant == IptablesLegacy {
		err = s.legacyAgrees(live)
	}
	for _, rs := range append(wanted, ruleset.Ruleset{}) { // at least the built-in chains
		if variant == IptablesNFT && err == nil {
			err = counted.agree(rs.Owner(), live)
		}
	}
	if err != nil {
		return nil, err
	}
	return describeSaved(variant, live, counters, wanted)
}

// tableNames are the tables that the variant has in the family.
func (h host) tableNames(variant Name, f ruleset.Family) []string {
	if variant == IptablesLegacy {
		return h.legacy[f]
	}
	var names []string
	for _, t := range h.nft {
		if t.isIptables() && t.family == nfProto(f) {
			names = append(names, t.name)
		}
	}
	return names
}

// lister is what Live takes of go-iptables.
type lister interface {
	ListChains(table string) ([]string, error)
	// ListWithCounters lists a chain as iptables -v -S does.
	ListWithCounters(table, chain string) ([]string, error)
}

// rootedLister lists with a program in another root, in which go-iptables starts none.
type rootedLister struct {
	ctx  context.Context
	opts Options
	path string
}

func (l rootedLister) lines(args ...string) ([]string, error) {
	text, err := run(l.ctx, l.opts, "", l.path, args...)
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n"), err
}

func (l rootedLister) ListChains(table string) (found []string, err error) {
	lines, err := l.lines("-t", table, "-S")
	for _, line := range lines {
		if words := strings.Fields(line); len(words) > 1 && (words[0] == "-P" || words[0] == "-N") {
			found = append(found, words[1])
		}
	}
	return found, err
}

func (l rootedLister) ListWithCounters(table, chain string) ([]string, error) {
	return l.lines("-t", table, "-v", "-S", chain)
}

// listIPTables lists the tables as iptables-save prints them, and the counters of the rules apart.
func (s *session) listIPTables(ctx context.Context, path string, f ruleset.Family, tables []string) (text string, counters map[chainName][]Counters, err error) {
	if s.opts.rooted() {
		return listIPTables(rootedLister{ctx, s.opts, path}, f, tables)
	}
	family := iptables.ProtocolIPv4
	if f == ruleset.IPv6 {
		family = iptables.ProtocolIPv6
	}
	// The calling thread is in the namespace, and so are the processes that go-iptables starts from it.
	err = s.ns.Do(func() error {
		ipt, err := iptables.New(iptables.Path(path), iptables.IPFamily(family))
		if err == nil {
			text, counters, err = listIPTables(ipt, f, tables)
		}
		return err
	})
	return text, counters, err
}

func listIPTables(ipt lister, f ruleset.Family, tables []string) (string, map[chainName][]Counters, error) {
	var b strings.Builder
	counters := map[chainName][]Counters{}
	for _, table := range tables {
		t, err := ruleset.ParseTable(table)
		if err != nil {
			continue // "security", of which no mesh has anything
		}
		found, err := ipt.ListChains(table)
		if err != nil {
			return "", nil, err
		}
		b.WriteString("*" + table + "\n")
		for _, chain := range found {
			if !chains.Safe(chain) {
				continue // not made by a program, and no program can be asked for it
			}
			lines, err := ipt.ListWithCounters(table, chain)
			if err != nil {
				return "", nil, err
			}
			if len(lines) == 0 {
				return "", nil, fmt.Errorf("chain %s of table %s: %w", chain, table, errText)
			}
			policy := "-"
			if first := strings.Fields(lines[0]); len(first) > 2 && first[0] == "-P" {
				policy = first[2]
			}
			b.WriteString(":" + chain + " " + policy + " [0:0]\n")
			rules, counts := cutCounters(strings.Join(lines[1:], "\n"))
			counters[chainName{nfProto(f), t, chain}] = counts
			if rules != "" {
				b.WriteString(rules + "\n")
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String(), counters, nil
}

// liveCounters finds a rule's counters. A comment may hold the same words, but
// then it is quoted, as the alternative before it is.
var liveCounters = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-c ([0-9]+) ([0-9]+)(?: |$|(\n))`)

// cutCounters takes the counters out of the lines of one chain.
func cutCounters(text string) (rules string, counters []Counters) {
	rules = liveCounters.ReplaceAllStringFunc(text, func(match string) string {
		m := liveCounters.FindStringSubmatch(match)
		if m[1] == "" {
			return match
		}
		var c Counters
		c.Packets, _ = strconv.ParseUint(m[1], 10, 64)
		c.Bytes, _ = strconv.ParseUint(m[2], 10, 64)
		counters = append(counters, c)
		return m[3]
	})
	return rules, counters
}

func describeSaved(variant Name, live *ruleset.Saved, counters map[chainName][]Counters, wanted []ruleset.Ruleset) ([]LiveRule, error) {
	var all []LiveRule
	for _, t := range live.Tables {
		table, err := ruleset.ParseTable(t.Name)
		if err != nil {
			return nil, err
		}
		for _, c := range t.Chains {
			counts := counters[chainName{nfProto(live.Family), table, c.Name}]
			if len(counts) != len(c.Rules) {
				return nil, fmt.Errorf("chain %s of table %s: %w", c.Name, t.Name, errText)
			}
			first := len(all)
			for i, r := range c.Rules {
				all = append(all, LiveRule{
					Backend: variant, Family: live.Family, Table: t.Name, Chain: c.Name,
					Position: i + 1, Rule: r.Text, Counters: &counts[i],
				})
			}
			if c.Policy != "-" && c.Policy != "ACCEPT" {
				all = append(all, LiveRule{
					Backend: variant, Family: live.Family, Table: t.Name, Chain: c.Name, Position: len(c.Rules) + 1,
					Rule: "policy " + strings.ToLower(c.Policy),
				})
			}
			for _, rs := range wanted {
				for _, i := range rs.Owner().Rules(live, table, c.Name) {
					all[first+i].Ours = true
					all[first+i].Reason = reason(rs.Program(live.Family), table, c.Name, c.Rules[i])
				}
			}
		}
	}
	return all, nil
}

// reason is the comment of the same rule in the wanted program.
func reason(p *ruleset.Program, table ruleset.Table, chain string, live ruleset.SavedRule) string {
	if p == nil || !live.Known {
		return ""
	}
	if c := p.Chain(table, chain); c != nil {
		if i := slices.IndexFunc(c.Rules, live.Rule.Equal); i >= 0 {
			return c.Rules[i].Comment
		}
	}
	return ""
}
