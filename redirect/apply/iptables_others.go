//go:build linux

package apply

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Rules of one owner are in one place at a time: whichever backend puts them
// there takes away what the others have left, once its own capture.

// hasNative reports whether the owner has a table of native nftables.
func (h host) hasNative(owner ruleset.Owner) bool {
	return owner.Prefix != "" && slices.Contains(h.nft, nftTable{unix.NFPROTO_INET, nft.TableName(owner)})
}

// hasLegacy reports whether the legacy variant has tables in the namespace.
func hasLegacy(ns Namespace) (bool, error) {
	h := host{}
	err := ns.Do(func() (err error) {
		h.legacy, err = legacyTables()
		return err
	})
	return len(h.legacy[ruleset.IPv4])+len(h.legacy[ruleset.IPv6]) > 0, err
}

// removeLegacy takes the owner's rules out of the legacy variant's tables, and
// leaves routing alone: it is the new backend's by now.
func removeLegacy(ctx context.Context, ns Namespace, o Options, owner ruleset.Owner) (changed bool, err error) {
	b, err := newIPTables(ns, IptablesLegacy, o)
	if err != nil {
		return false, fmt.Errorf("remove what iptables-legacy may have left: %w", err)
	}
	s, done, err := b.open(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	changes, _, _ := s.plan(owner.EmptyRuleset(), owner)
	err = s.change(ctx, changes)
	return s.commits.Load() > 0, err
}

// checkLegacy reports the owner's rules in the legacy variant's tables.
func checkLegacy(ctx context.Context, ns Namespace, o Options, owner ruleset.Owner) ([]ruleset.Difference, error) {
	b, err := newIPTables(ns, IptablesLegacy, o)
	if err != nil {
		return nil, fmt.Errorf("check what iptables-legacy may have left: %w", err)
	}
	s, done, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	changes, _, _ := s.plan(owner.EmptyRuleset(), owner)
	return s.differences(ctx, changes)
}

// native is the nftables backend in a namespace that may hold rules of the
// legacy variant, which nftables cannot see.
type native struct {
	*nftablesBackend
	opts Options
}

func (n native) Apply(ctx context.Context, rs ruleset.Ruleset) (Result, error) {
	result, err := n.nftablesBackend.Apply(ctx, rs)
	if err != nil {
		return result, err
	}
	if has, err := hasLegacy(n.ns); err != nil || !has {
		return result, err
	}
	changed, err := removeLegacy(ctx, n.ns, n.opts, rs.Owner())
	if err != nil || !changed {
		return result, err
	}
	result.Changed = true
	// What an earlier program needed is still there, since only the legacy rules told of it.
	p := plumbing{ns: n.ns}
	defer p.close()
	families := slices.DeleteFunc(slices.Clone(ruleset.Families[:]), func(f ruleset.Family) bool { return slices.Contains(result.Skipped, f) })
	_, err = p.drop(rs.Owner(), rs, families)
	return result, err
}

func (n native) Check(ctx context.Context, rs ruleset.Ruleset) ([]ruleset.Difference, error) {
	diffs, err := n.nftablesBackend.Check(ctx, rs)
	if err != nil {
		return diffs, err
	}
	if has, err := hasLegacy(n.ns); err != nil || !has {
		return diffs, err
	}
	more, err := checkLegacy(ctx, n.ns, n.opts, rs.Owner())
	return append(diffs, more...), err
}

func (n native) Remove(ctx context.Context, owner ruleset.Owner) error {
	if err := n.nftablesBackend.Remove(ctx, owner); err != nil {
		return err
	}
	if has, err := hasLegacy(n.ns); err != nil || !has {
		return err
	}
	_, err := removeLegacy(ctx, n.ns, n.opts, owner)
	return err
}
