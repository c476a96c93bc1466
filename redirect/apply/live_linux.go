package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	save, ok := o.applet(variant, programs[f], "-save")
	if !ok {
		return nil, fmt.Errorf("%w: %s: no %s-save of this variant in %s", ErrNoBackend, variant, programs[f], o.where())
	}
	owners := []ruleset.Owner{{}} // at least the built-in chains
	for _, rs := range wanted {
		owners = append(owners, rs.Owner())
	}
	err = b.session(ctx, func(s *session) error {
		live, err := s.list(ctx, variant, f, owners, save, "-c")
		if err == nil {
			all = describeSaved(variant, live, wanted)
		}
		return err
	})
	return all, err
}

func describeSaved(variant Name, live *ruleset.Saved, wanted []ruleset.Ruleset) (all []LiveRule) {
	for _, t := range live.Tables {
		table, err := ruleset.ParseTable(t.Name)
		if err != nil {
			continue // "security", of which no mesh has anything
		}
		for _, c := range t.Chains {
			first := len(all)
			for i, r := range c.Rules {
				all = append(all, LiveRule{
					Backend: variant, Family: live.Family, Table: t.Name, Chain: c.Name,
					Position: i + 1, Rule: r.Text, Counters: &Counters{r.Packets, r.Bytes},
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
	return all
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
