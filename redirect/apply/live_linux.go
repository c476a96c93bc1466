package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Live lists all rules in a namespace with their counters: those of both iptables variants, then
// those of nftables. The wanted rulesets say which rules are ours and why they are there; to ask
// for an owner's rules without reasons, pass [ruleset.Ownership.EmptyRuleset].
//
// It is for people to look at and starts several iptables processes. It changes nothing, and asks
// only for tables that exist. Of others' rules, of which a pod may have any number, so many are read as are worth a look; what stands for
// the rest is [ruleset.LiveRule.Unread]. Rules that could be read are returned beside the error about those
// that could not, for which errors.Is(err, apply.ErrNoBackend) holds where the host lacks the
// programs of a variant that is in use.
func Live(ctx context.Context, ns Namespace, o Options, wanted ...ruleset.Ruleset) (ruleset.Live, error) {
	if err := o.reachable(); err != nil {
		return nil, fmt.Errorf("list live rules: %w", err)
	}
	h, err := look(ns)
	if err != nil {
		return nil, fmt.Errorf("list live rules: %w", err)
	}
	var all ruleset.Live
	var errs []error
	for _, variant := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		for _, f := range ruleset.Families {
			if h.uses(variant, f) {
				rules, _, err := tooMany(ctx, ns, h, variant, f, wanted)
				if len(rules) > 0 || err != nil {
					all, errs = append(all, rules...), append(errs, err)
					continue
				}
				rules, err = liveIPTables(ctx, ns, o, variant, f, wanted)
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

// maxOthers bounds the rules of others in iptables' tables of a family that a look or a check has a program print: each costs some 20 to 80 µs of a
// processor. maxStandIns bounds what stands for more.
const maxOthers, maxStandIns = 1000, 100

// tooMany returns what stands for the rules of a variant and family in which others have more than are read; nothing, if they have not. Uses
// are of the nft variant: for each chain its rules, and the jumps to it.
func tooMany(ctx context.Context, ns Namespace, h host, variant ruleset.Backend, f ruleset.Family, wanted []ruleset.Ruleset) (all ruleset.Live, uses chainRules, err error) {
	others := 0
	add := func(table, chain string) {
		if _, err := ruleset.ParseTable(table); err == nil && len(all) < maxStandIns {
			r := unread(table, chain, 1, f)
			r.Backend = variant
			all = append(all, r)
		}
	}
	if variant == ruleset.BackendIptablesNFT {
		err = newNFTables(ns).session(ctx, func(s *nftSession) error {
			all, others, uses = nil, 0, chainRules{}
			return s.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, nfProto(f), nil, func(m nfnetlink.Message) {
				ch := parseChain(m)
				rules := int(m.Attr(unix.NFTA_CHAIN_USE).U32()) // and jumps to it
				if !(nftTable{ch.family, ch.table}).isIptables() || rules == 0 {
					return
				}
				if !slices.ContainsFunc(wanted, func(rs ruleset.Ruleset) bool { return rs.Owner().OwnsChain(ch.name) }) {
					others += rules
				}
				add(ch.table, ch.name)
				if t, err := ruleset.ParseTable(ch.table); err == nil {
					uses[chainName{ch.family, t, ch.name}] = rules
				}
			})
		})
	} else {
		err = ns.Do(func() error {
			for _, table := range h.legacy[f] {
				info, err := readLegacyInfo(unix.Socket, f, table)
				if err != nil {
					return err
				}
				others += info.entries
				add(table, ruleset.Prerouting)
				add(table, ruleset.Output)
			}
			return nil
		})
		for _, rs := range wanted {
			if plain, err := rs.Iptables(); err == nil {
				rs = plain
			}
			if p := rs.Family(f); p != nil {
				for _, c := range p.Chains {
					others -= len(c.Rules)
				}
			}
		}
	}
	if err != nil || others <= maxOthers {
		return nil, nil, err
	}
	return all, uses, nil
}

// liveIPTables lists the rules of one variant and family, but for table "security", of which no mesh has anything. Like every text
// of rules from a pod's namespace, this one counts only if the kernel agrees.
func liveIPTables(ctx context.Context, ns Namespace, o Options, variant ruleset.Backend, f ruleset.Family, wanted []ruleset.Ruleset) (all ruleset.Live, err error) {
	b, err := newIPTables(ns, variant, o)
	if err != nil {
		return nil, err
	}
	save, ok := o.applet(variant, programs[f], "-save")
	if !ok {
		return nil, fmt.Errorf("%w: %s: no %s-save of this variant in %s", ErrNoBackend, variant, programs[f], o.where())
	}
	owners := []ruleset.Ownership{{}} // at least the built-in chains
	for _, rs := range wanted {
		owners = append(owners, rs.Owner())
	}
	err = b.session(ctx, func(s *session) error {
		live, err := s.list(ctx, variant, f, owners, save, "-c")
		if err == nil {
			all = live.Live(variant, wanted...)
		}
		return err
	})
	return slices.DeleteFunc(all, func(r ruleset.LiveRule) bool {
		_, err := ruleset.ParseTable(r.Table)
		return err != nil
	}), err
}
