//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// nftablesBackend writes native nftables rules by netlink, without any process, library or xtables module. A ruleset is
// one table of family inet for both families, named after the owner and replaced in one transaction, so that a packet
// meets either the old rules or the new ones. What the owner left through iptables-nft, or another program of the mesh in
// its own tables, is removed once our rules are in force; for iptables-legacy see native.
//
// Packets are treated as under iptables, with one exception: iptables' negated owner match takes
// packets that no socket sent, such as the kernel's own answers, and nftables' does not.
//
// It needs Linux 5.2, or a kernel with inet NAT. It is safe for concurrent use.
type nftablesBackend struct{ ns Namespace }

func newNFTables(ns Namespace) *nftablesBackend { return &nftablesBackend{ns} }

// Name is [ruleset.BackendNftables].
func (n *nftablesBackend) Name() ruleset.Backend { return ruleset.BackendNftables }

// nftSession is one call's socket and findings.
type nftSession struct {
	nlConn
	ns   Namespace
	ipv6 bool
	// removed reports that rules were taken out.
	removed bool
	// beside are tables of others with a base chain at a hook of ours.
	beside []nftTable
	// added reports that our table was made beside rules that the owner still has elsewhere.
	added bool
}

// close closes the socket. Where rules were removed that takes some 10 ms, until no
// packet can be in them, so nobody waits for it.
func (s *nftSession) close() {
	fd := s.FD
	if s.removed {
		go func() { _ = unix.Close(fd) }()
	} else {
		_ = unix.Close(fd)
	}
}

// session runs fn with a socket in the namespace, again when it was interrupted.
func (n *nftablesBackend) session(ctx context.Context, fn func(*nftSession) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s := nftSession{ns: n.ns}
	// One visit for both: entering the namespace is a good part of the cost.
	err := n.ns.Do(func() (err error) {
		if s.ipv6, err = hasIPv6(); err != nil {
			return err
		}
		s.FD, err = netfilterSocket()
		return err
	})
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer s.close()
	s.Setup()
	return classify(s.Session(ctx, listLimit, func() error { return fn(&s) }))
}

// netfilterSocket opens a socket in the calling thread's namespace.
func netfilterSocket() (fd int, err error) {
	fd, err = nfnetlink.Open()
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		return fd, unsupported("nfnetlink", "CONFIG_NETFILTER_NETLINK", err)
	}
	return fd, err
}

// hasIPv6 reports whether the calling thread's namespace has the protocol.
func hasIPv6() (bool, error) {
	_, err := os.Stat(inet6)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for IPv6: %w", err)
	}
	// Without /proc every family would look absent.
	if _, err := os.Stat("/proc/thread-self/net/netlink"); err != nil {
		return false, fmt.Errorf("look for IPv6: %w", err)
	}
	return false, nil
}

// families lists the families that the namespace has.
func (s *nftSession) families() []ruleset.Family { return host{ipv6: s.ipv6}.families() }

// Apply makes the live rules and routing those of rs; see [Backend].
func (n *nftablesBackend) Apply(ctx context.Context, rs ruleset.Ruleset) (Result, error) {
	result, _, err := n.apply(ctx, rs)
	return result, err
}

// apply is Apply, and returns the tables of others that are beside ours.
func (n *nftablesBackend) apply(ctx context.Context, rs ruleset.Ruleset) (result Result, beside []nftTable, err error) {
	if err := rs.Validate(); err != nil {
		return Result{}, nil, err
	}
	result = Result{Backend: ruleset.BackendNftables}
	start := time.Now()
	added := false
	err = n.session(ctx, func(s *nftSession) error {
		result.Changed, result.Transactions, result.Skipped = false, 0, nil
		err := s.apply(ctx, rs, &result)
		added, beside = s.added, s.beside
		return err
	})
	if err != nil && added {
		// What is elsewhere is still there, and our rules beside it would be nobody's.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, dropInet(undo, n.ns, []string{nft.TableName(rs.Owner())}))
	}
	if err != nil {
		return Result{}, nil, fmt.Errorf("apply nftables rules: %w", err)
	}
	result.Duration = time.Since(start)
	return result, beside, nil
}

// Check returns how the live rules and routing differ from rs; see [Backend].
func (n *nftablesBackend) Check(ctx context.Context, rs ruleset.Ruleset) (diffs []ruleset.Difference, err error) {
	diffs, _, err = n.check(ctx, rs)
	return diffs, err
}

// check is Check, and returns the tables of others that are beside ours.
func (n *nftablesBackend) check(ctx context.Context, rs ruleset.Ruleset) (diffs []ruleset.Difference, beside []nftTable, err error) {
	if err := rs.Validate(); err != nil {
		return nil, nil, err
	}
	err = n.session(ctx, func(s *nftSession) error {
		wanted, _ := s.present(rs)
		live, err := s.readLive(rs.Owner())
		if err != nil {
			return err
		}
		beside = live.beside
		diffs = diffLive(wanted, nft.Lower(wanted), live)
		pipes := plumbing{ns: s.ns}
		defer pipes.close()
		more, err := pipes.diff(rs.Owner(), wanted, s.families())
		diffs = append(diffs, more...)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("check nftables rules: %w", err)
	}
	return diffs, beside, nil
}

// Remove takes out all rules and routing of the owner; see [Backend].
func (n *nftablesBackend) Remove(ctx context.Context, owner ruleset.Ownership) error {
	err := n.session(ctx, func(s *nftSession) error { return s.apply(ctx, owner.EmptyRuleset(), &Result{}) })
	if err != nil {
		return fmt.Errorf("remove nftables rules: %w", err)
	}
	return nil
}

// present leaves out the program of a family that the namespace does not have.
func (s *nftSession) present(rs ruleset.Ruleset) (wanted ruleset.Ruleset, skipped []ruleset.Family) {
	if rs.IPv6 != nil && !s.ipv6 {
		if len(rs.IPv6.Chains) > 0 {
			skipped = append(skipped, ruleset.IPv6)
		}
		rs.IPv6 = rs.IPv6.Owner.EmptyRuleset().IPv6
	}
	return rs, skipped
}

func (s *nftSession) apply(ctx context.Context, rs ruleset.Ruleset, result *Result) error {
	owner := rs.Owner()
	if owner.Prefix == "" {
		return errors.New("the owner has no prefix, so its rules could not be told from others'")
	}
	wanted, skipped := s.present(rs)
	result.Skipped = skipped
	want := nft.Lower(wanted)
	live, err := s.readLive(owner)
	if err != nil {
		return err
	}
	s.added = s.added && live.elsewhere()
	s.beside = live.beside
	// What rules need comes before them, and goes after them.
	pipes := plumbing{ns: s.ns}
	defer pipes.close()
	made, err := pipes.make(ctx, wanted, s.families())
	result.Unusable = pipes.unusable
	if err != nil {
		return errors.Join(err, pipes.undo())
	}
	if s.differs(wanted, want, live) {
		if err := s.replace(wanted, want, live, result); err != nil {
			return errors.Join(err, pipes.undo())
		}
	}
	// In a namespace that had nothing of ours there is nothing to drop either.
	dropped := false
	if live.present() || len(want.Chains) == 0 {
		if dropped, err = pipes.drop(owner, wanted, s.families()); err != nil {
			return err
		}
	}
	result.Changed = result.Transactions > 0 || made || dropped
	return nil
}

// differs reports whether there is anything to write. A table without chains
// is none that is wanted, though it holds no rule.
func (s *nftSession) differs(wanted ruleset.Ruleset, want *nft.Table, live *nftLive) bool {
	if len(want.Chains) == 0 || !live.present() {
		return len(want.Chains) > 0 || live.present()
	}
	return len(diffLive(wanted, want, live)) > 0
}

// replace makes what is live what is wanted, in one transaction. If rules are wanted and the owner has some elsewhere, these
// go in a second one: in the first, a packet could pass our chain before the switch, when it is empty, and the old chain
// after it, when that is empty. So both are in force for a moment, and capture the same connections.
func (s *nftSession) replace(wanted ruleset.Ruleset, want *nft.Table, live *nftLive, result *Result) error {
	written := func(err error) error {
		if err == nil {
			result.Transactions++
		}
		return err
	}
	if len(want.Chains) == 0 || !live.elsewhere() {
		return written(s.write(want, live))
	}
	own := *live
	own.leftovers, own.leads, own.others = nil, nil, nil
	if s.differs(wanted, want, &own) {
		if err := written(s.write(want, &own)); err != nil {
			return err
		}
		s.added = s.added || own.table == nil
	}
	now, err := s.readLive(wanted.Owner())
	if err != nil {
		return err
	}
	b := newBatch(s.Seq+1, now.generation)
	b.clearElsewhere(now)
	s.removed = true
	err = written(s.transact(b))
	s.added = s.added && err != nil
	return err
}

// write replaces what is live by what is wanted, in one transaction.
func (s *nftSession) write(want *nft.Table, live *nftLive) error {
	b := newBatch(s.Seq+1, live.generation)
	switch {
	case len(want.Chains) == 0 && live.table != nil:
		b.delTable(nftTable{unix.NFPROTO_INET, live.name})
	case len(want.Chains) == 0:
	case live.table == nil:
		b.addTable(want.Name)
		b.fill(want, nil)
	case live.table.flags != 0:
		// Dormant, for one: hooks of chains that stay would stay unregistered.
		b.delTable(nftTable{unix.NFPROTO_INET, live.name})
		b.addTable(want.Name)
		b.fill(want, nil)
	default:
		b.fill(want, b.clear(want, live))
	}
	b.clearElsewhere(live)
	s.removed = s.removed || live.present()
	return s.transact(b)
}

// transact commits a transaction. An error of the kernel's names the message that it is about.
func (s *nftSession) transact(b *nftBatch) error {
	last := b.EndBatch()
	err := s.Commit(b.B, last)
	var refused *nfnetlink.BatchError
	if errors.As(err, &refused) {
		step := b.failed(refused.Seq)
		return &stepError{step: step, err: err}
	}
	return err
}
