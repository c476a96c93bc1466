//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// HandOver makes the rules of a namespace those by which another program of the mesh does the same, and so gives the pod to
// that program: ruleset rs, in the names that the program uses. By iptables these are the names of the ruleset's chains. With
// [ruleset.BackendNftables] in the options they are those of the layout. The owner's other rules are removed once these are in force, so
// that no connection is without. Policy routing stays as the ruleset has it.
//
// If it fails, the rules are as they were, or the error says that they could not be restored.
func HandOver(ctx context.Context, ns Namespace, rs ruleset.Ruleset, layout ruleset.Layout, o Options) (Result, error) {
	if err := rs.Validate(); err != nil {
		return Result{}, err
	}
	if o.Backend != ruleset.BackendNftables {
		b, err := Choose(ctx, ns, o)
		if err != nil {
			return Result{}, err
		}
		if b.Name() != ruleset.BackendNftables {
			return b.Apply(ctx, rs)
		}
	}
	start := time.Now()
	result := Result{Backend: ruleset.BackendNftables}
	if err := newNFTables(ns).handOver(ctx, rs, layout, &result); err != nil {
		return Result{}, fmt.Errorf("hand over nftables rules: %w", err)
	}
	// The program's own tables are no more to be removed than its routing.
	owner := rs.Owner()
	owner.OtherTables = nil
	_, changed, err := native{newNFTables(ns), o}.removeLegacy(ctx, owner)
	result.Changed, result.Duration = result.Changed || changed, time.Since(start)
	return result, err
}

func (n *nftablesBackend) handOver(ctx context.Context, rs ruleset.Ruleset, layout ruleset.Layout, result *Result) error {
	var names, made []string // of its tables, and of those that were not there before
	err := n.session(ctx, func(s *nftSession) error {
		wanted, skipped := s.present(rs)
		tables, err := nft.LayOut(wanted, layout)
		if err != nil {
			return err
		}
		live, err := s.readLive(rs.Owner())
		if err != nil {
			return err
		}
		result.Skipped = skipped
		pipes := plumbing{ns: s.ns}
		defer pipes.close()
		routed, err := pipes.make(ctx, wanted, s.families())
		result.Unusable = pipes.unusable
		if err == nil {
			err = s.layOut(tables)
		}
		if err != nil {
			return errors.Join(err, pipes.undo())
		}
		for _, t := range tables {
			names = append(names, t.Name)
			if !slices.Contains(live.others, nftTable{unix.NFPROTO_INET, t.Name}) {
				made = append(made, t.Name)
			}
		}
		result.Changed, result.Transactions = result.Changed || routed || len(tables) > 0, result.Transactions+1
		return nil
	})
	if err == nil {
		err = n.session(ctx, func(s *nftSession) error { return s.removeBeside(rs.Owner(), names, result) })
	}
	if err != nil && len(made) > 0 {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, dropInet(undo, n.ns, made))
	}
	return err
}

// layOut makes tables anew, in one transaction.
func (s *nftSession) layOut(tables []*nft.Table) error {
	b := newBatch(s.Seq+1, 0)
	for _, t := range tables {
		b.addTable(t.Name) // so that there is one to delete
		b.delTable(nftTable{unix.NFPROTO_INET, t.Name})
		b.addTable(t.Name)
		b.fill(t, nil)
	}
	s.removed = true
	return s.transact(b)
}

// removeBeside removes all of the owner's rules but those in the named tables.
func (s *nftSession) removeBeside(owner ruleset.Ownership, names []string, result *Result) error {
	owner.OtherTables = slices.DeleteFunc(slices.Clone(owner.OtherTables), func(t string) bool { return slices.Contains(names, t) })
	live, err := s.readLive(owner)
	if err != nil || !live.present() {
		return err
	}
	if err := s.write(&nft.Table{}, live); err != nil {
		return err
	}
	result.Transactions++
	return nil
}
