//go:build linux

package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The rules of one owner are in one place at a time: once a backend's own rules
// capture, it removes those that another backend left.

// native are the names of the owner's tables of native nftables that are there.
func (h host) native(owner ruleset.Ownership) []string {
	return slices.DeleteFunc(inetTables(owner), func(name string) bool {
		return !slices.Contains(h.nft, nftTable{unix.NFPROTO_INET, name})
	})
}

// withLegacy calls fn with the changes that remove the owner's rules from tables of
// the legacy variant, if there are any. Routing is left to the nftables backend.
func (n native) withLegacy(ctx context.Context, owner ruleset.Ownership, fn func(*session, []*change) error) error {
	var legacy map[ruleset.Family][]string
	err := n.ns.Do(func() (err error) {
		legacy, err = legacyTables()
		return err
	})
	if err != nil || len(legacy[ruleset.IPv4])+len(legacy[ruleset.IPv6]) == 0 {
		return err
	}
	b, err := newIPTables(n.ns, ruleset.BackendIptablesLegacy, n.opts)
	if err != nil {
		return fmt.Errorf("look for what iptables-legacy may have left: %w", err)
	}
	return b.session(ctx, func(s *session) error {
		changes, _, _ := s.plan(owner.EmptyRuleset(), owner)
		return fn(s, changes)
	})
}

func (n native) removeLegacy(ctx context.Context, owner ruleset.Ownership) (there, changed bool, err error) {
	err = n.withLegacy(ctx, owner, func(s *session, changes []*change) error {
		there = true
		err := s.change(ctx, changes)
		changed = s.commits.Load() > 0
		return err
	})
	return there, changed, err
}

// native is the nftables backend in a namespace that may hold rules of the legacy variant, which nftables cannot see.
type native struct {
	*nftablesBackend
	opts Options
}

func (n native) Apply(ctx context.Context, rs ruleset.Ruleset) (Result, error) {
	result, beside, err := n.apply(ctx, rs)
	if err != nil {
		return result, err
	}
	legacy, changed, err := n.removeLegacy(ctx, rs.Owner())
	if err == nil && changed {
		result.Changed = true
		// Only the legacy rules told that an earlier program had fixtures; they are still there.
		p := plumbing{ns: n.ns}
		defer p.close()
		families := slices.DeleteFunc(slices.Clone(ruleset.Families[:]), func(f ruleset.Family) bool { return slices.Contains(result.Skipped, f) })
		_, err = p.drop(rs.Owner(), rs, families)
	}
	if err == nil && (legacy || len(beside) > 0) {
		result.Past, err = n.inForce(ctx, rs)
	}
	return result, err
}

func (n native) Check(ctx context.Context, rs ruleset.Ruleset) ([]ruleset.Difference, error) {
	diffs, beside, err := n.check(ctx, rs)
	if err != nil {
		return diffs, err
	}
	legacy := false
	err = n.withLegacy(ctx, rs.Owner(), func(s *session, changes []*change) error {
		legacy = true
		more, err := s.differences(ctx, changes)
		diffs = append(diffs, more...)
		return err
	})
	if err == nil && (legacy || len(beside) > 0) && inPlace(diffs) {
		var past []ruleset.Difference
		past, err = n.inForce(ctx, rs)
		diffs = append(diffs, past...)
	}
	return diffs, err
}

func (n native) Remove(ctx context.Context, owner ruleset.Ownership) error {
	if err := n.nftablesBackend.Remove(ctx, owner); err != nil {
		return err
	}
	_, _, err := n.removeLegacy(ctx, owner)
	return err
}

// IptablesTraces describes the rules that iptables may hold for the owner in the namespace, such as "iptables-nft,
// chain ISTIO_OUTPUT", or returns "". It starts no process, so it also works where iptables is not installed. Any rule
// of the legacy variant counts, because the kernel does not list its chains.
func IptablesTraces(ctx context.Context, ns Namespace, owner ruleset.Ownership) (string, error) {
	var legacy map[ruleset.Family][]string
	err := ns.Do(func() (err error) {
		legacy, err = legacyTables()
		return err
	})
	tables := slices.Concat(legacy[ruleset.IPv4], legacy[ruleset.IPv6])
	if err == nil && len(tables) > 0 {
		return "iptables-legacy, tables " + strings.Join(tables, " "), nil
	}
	var chains chainRules
	if err == nil {
		chains, err = kernelRules(ctx, ns, unix.NFPROTO_UNSPEC)
	}
	if err != nil {
		return "", fmt.Errorf("look for rules of iptables: %w", err)
	}
	own := ""
	for c := range chains {
		if (nftTable{c.family, c.table.String()}).isIptables() && owner.OwnsChain(c.name) && (own == "" || c.name < own) {
			own = c.name
		}
	}
	if own == "" {
		return "", nil
	}
	return "iptables-nft, chain " + own, nil
}
