//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// iptablesBackend feeds the host's iptables-restore: one process for each family in a fresh namespace, and one more to
// read the live rules if there may be any. It is safe for concurrent use.
type iptablesBackend struct {
	ns    Namespace
	tools tools
	opts  Options // with a Runner
}

// newIPTables fails with [ErrNoBackend] if the host lacks the variant's programs.
func newIPTables(ns Namespace, variant ruleset.Backend, o Options) (*iptablesBackend, error) {
	t, err := o.tools(variant)
	if err != nil {
		return nil, err
	}
	if o.Runner == nil {
		o.Runner = ns
		if n, ok := ns.(*netnsexec.NetNS); ok {
			o.Runner = n.Sandbox()
		}
	}
	return &iptablesBackend{ns: ns, tools: t, opts: o}, nil
}

// Name returns iptables-nft or iptables-legacy.
func (b *iptablesBackend) Name() ruleset.Backend { return b.tools.variant }

// change is one family on its way from what is live to what is wanted.
type change struct {
	family ruleset.Family
	want   *ruleset.FamilyRuleset
	tools  tools
	// live are the chains that were found; nil when the variant had no tables here.
	live  ruleset.LiveChains
	diffs []ruleset.Difference
	// attempted is set once rules may have changed.
	attempted bool
}

// session is one Apply, Check or Remove.
type session struct {
	*iptablesBackend
	host      host
	processes atomic.Int32
	commits   atomic.Int32
	plumbing  plumbing
}

// session calls fn with the namespace locked and looked at.
func (b *iptablesBackend) session(ctx context.Context, fn func(*session) error) error {
	unlock, err := lock(ctx, b.ns)
	if err != nil {
		return err
	}
	defer unlock()
	h, err := look(b.ns)
	if err != nil {
		return fmt.Errorf("look at network namespace: %w", err)
	}
	s := &session{iptablesBackend: b, host: h, plumbing: plumbing{ns: b.ns}}
	defer s.plumbing.close()
	return fn(s)
}

// Apply makes the live rules those of rs; see [Backend].
func (b *iptablesBackend) Apply(ctx context.Context, rs ruleset.Ruleset) (result Result, err error) {
	if err := rs.Validate(); err != nil {
		return Result{}, err
	}
	if rs, err = rs.Iptables(); err != nil {
		return Result{}, &refusedError{err}
	}
	start := time.Now()
	err = b.session(ctx, func(s *session) (err error) {
		result, err = s.applyAll(ctx, rs)
		return err
	})
	if result.Backend != "" {
		result.Duration = time.Since(start)
	}
	return result, err
}

func (s *session) applyAll(ctx context.Context, rs ruleset.Ruleset) (Result, error) {
	result := Result{Backend: s.Name()}
	owner := rs.Owner()
	changes, stale, skipped := s.plan(rs, owner)
	result.Skipped = skipped

	// What rules need comes before them, and goes after them.
	made, err := s.plumbing.make(ctx, rs, s.host.families())
	result.Unusable = s.plumbing.unusable
	if err == nil {
		err = s.change(ctx, changes)
	}
	if err == nil {
		// Rules of the other variant go once ours capture in their place.
		err = s.change(ctx, stale)
	}
	if err != nil {
		if undone := s.undo(ctx, append(stale, changes...)); undone != nil {
			return Result{}, errors.Join(err, undone)
		}
		return Result{}, refusal(err)
	}
	native := s.host.native(owner)
	if len(native) > 0 {
		err = dropInet(ctx, s.ns, native)
	}
	dropped := false
	if len(native) > 0 || len(stale) > 0 || slices.ContainsFunc(changes, func(c *change) bool { return owner.Present(c.live) }) {
		// Where nothing of the owner's was, nothing is to be dropped.
		var derr error
		dropped, derr = s.plumbing.drop(owner, rs, s.host.families())
		err = errors.Join(err, derr)
	}
	result.Processes, result.Transactions = int(s.processes.Load()), int(s.commits.Load())
	result.Changed = result.Transactions > 0 || made || dropped || len(native) > 0
	if err == nil && s.crowded(owner, append(stale, changes...)) {
		result.Past, err = s.nowInForce(ctx, rs, append(stale, changes...))
	}
	return result, err
}

// plan lists what is to be changed: each family by our variant, and by the other where that has tables, so that one pod
// never has rules in both. A family without a program is to have none of the owner's rules.
func (s *session) plan(rs ruleset.Ruleset, owner ruleset.Ownership) (ours, stale []*change, skipped []ruleset.Family) {
	for _, f := range ruleset.Families {
		want := rs.Family(f)
		if !s.host.has(f) {
			if want != nil {
				skipped = append(skipped, f)
			}
			continue
		}
		if want == nil {
			want = &ruleset.FamilyRuleset{Family: f, Owner: owner}
		}
		if len(want.Chains) > 0 || s.host.uses(s.tools.variant, f) {
			ours = append(ours, &change{family: f, want: want, tools: s.tools})
		}
		other := otherVariant(s.tools.variant)
		if s.host.uses(other, f) {
			if t, err := s.opts.tools(other); err == nil {
				stale = append(stale, &change{family: f, want: want.Owner.EmptyRuleset().Family(f), tools: t})
			}
		}
	}
	return ours, stale, skipped
}

func otherVariant(v ruleset.Backend) ruleset.Backend {
	if v == ruleset.BackendIptablesNFT {
		return ruleset.BackendIptablesLegacy
	}
	return ruleset.BackendIptablesNFT
}

// each runs fn for all changes at once: the families are independent, and most of the time is the start of a process.
func each(changes []*change, fn func(*change) error) error {
	errs := make([]error, len(changes))
	var wg sync.WaitGroup
	for i, c := range changes {
		wg.Go(func() { errs[i] = fn(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *session) run(ctx context.Context, input, path string, args ...string) (string, error) {
	s.processes.Add(1)
	return run(ctx, s.opts, input, path, args...)
}

// read fills in what is live, if the variant may have anything.
func (s *session) read(ctx context.Context, c *change) (err error) {
	if s.host.uses(c.tools.variant, c.family) {
		c.live, err = s.saved(ctx, c)
	}
	return err
}

func (s *session) apply(ctx context.Context, c *change) error {
	fail := func(err error) error { return &familyError{family: c.family, op: "apply", err: err} }
	if err := s.read(ctx, c); err != nil {
		return fail(err)
	}
	text := c.want.Transition(c.live)
	if text == "" {
		return nil
	}
	c.attempted = true
	if _, err := s.run(ctx, text, c.tools.restore[c.family], "--noflush"); err != nil {
		if foreign, lerr := ofAnotherUser(s.ns); lerr == nil && foreign {
			err = fmt.Errorf("the namespace is of another user namespace (hostUsers: false), in which iptables cannot match users; "+
				"backend auto or nftables can: %w", err)
		}
		return fail(err)
	}
	s.commits.Add(int32(strings.Count(text, "\nCOMMIT\n")))
	return nil
}

// Check returns how the live rules differ from rs; see [Backend].
func (b *iptablesBackend) Check(ctx context.Context, rs ruleset.Ruleset) (found []ruleset.Difference, err error) {
	if err := rs.Validate(); err != nil {
		return nil, err
	}
	if rs, err = rs.Iptables(); err != nil {
		return nil, err
	}
	err = b.session(ctx, func(s *session) (err error) {
		changes, stale, _ := s.plan(rs, rs.Owner())
		if found, err = s.differences(ctx, append(changes, stale...)); err != nil {
			found = nil
			return err
		}
		for _, name := range s.host.native(rs.Owner()) {
			found = append(found, ruleset.Difference{Kind: ruleset.KindUnexpected, Family: ruleset.IPv4, Table: "inet " + name})
		}
		if inPlace(found) {
			past, err := s.inForce(ctx, rs, &trace.Hooks{}, append(changes, stale...))
			found = append(found, past...)
			if err != nil {
				return err
			}
		}
		diffs, err := s.plumbing.diff(rs.Owner(), rs, s.host.families())
		found = append(found, diffs...)
		return err
	})
	return found, err
}

// differences reads what is live and compares, all changes at once.
func (s *session) differences(ctx context.Context, changes []*change) ([]ruleset.Difference, error) {
	err := each(changes, func(c *change) error {
		long, err := s.count(ctx, c)
		if err == nil && !long {
			if err = s.read(ctx, c); err == nil {
				c.diffs = c.want.Diff(c.live)
			}
		}
		if err != nil {
			return &familyError{family: c.family, op: "check", err: err}
		}
		return nil
	})
	var found []ruleset.Difference
	for _, c := range changes {
		found = append(found, c.diffs...)
	}
	return found, err
}

// count reports whether others have more rules than are worth to be read, since a pod may have any number. Then what the kernel counts of the
// owner's chains is all that is compared, and it cannot be told whether the rules are those that are wanted.
func (s *session) count(ctx context.Context, c *change) (long bool, err error) {
	if !s.host.uses(c.tools.variant, c.family) {
		return false, nil
	}
	var rs ruleset.Ruleset
	rs.Set(c.want)
	all, uses, err := tooMany(ctx, s.ns, s.host, c.tools.variant, c.family, []ruleset.Ruleset{rs})
	if err != nil || len(all) == 0 {
		return false, err
	}
	c.diffs = []ruleset.Difference{{
		Kind: ruleset.KindUnknown, Family: c.family, Chain: "rules of " + string(c.tools.variant), Position: 1, Rule: fmt.Sprintf("others have more than %d, so none is read", maxOthers),
	}}
	for _, w := range c.want.Chains {
		if n := uses[chainName{nfProto(c.family), w.Table, w.Name}]; uses == nil || chains.IsBuiltin(w.Name) || n >= len(w.Rules) {
			continue
		}
		for i := range w.Rules {
			c.diffs = append(c.diffs, ruleset.Difference{
				Kind: ruleset.KindMissing, Family: c.family, Table: w.Table.String(), Chain: w.Name, Position: i + 1, Rule: w.Rules[i].Text(c.family),
			})
		}
	}
	return true, nil
}

// Remove takes out all rules and routing of the owner; see [Backend].
func (b *iptablesBackend) Remove(ctx context.Context, owner ruleset.Ownership) error {
	return b.session(ctx, func(s *session) error {
		changes, stale, _ := s.plan(owner.EmptyRuleset(), owner)
		if err := s.change(ctx, append(changes, stale...)); err != nil {
			return err
		}
		if native := s.host.native(owner); len(native) > 0 {
			if err := dropInet(ctx, b.ns, native); err != nil {
				return err
			}
		}
		if _, err := s.plumbing.drop(owner, ruleset.Ruleset{}, s.host.families()); err != nil || s.commits.Load() == 0 {
			return err
		}
		return dropEmptyTables(ctx, b.ns)
	})
}

// undoTime bounds putting things back, which must go on when the context of
// the failed Apply has ended. A variable for tests.
var undoTime = 10 * time.Second

// undo puts back what was found, after a failure that may have changed rules:
// a pod with half of its rules is worse than one that does not start.
func (s *session) undo(ctx context.Context, changes []*change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	err := each(changes, func(c *change) error {
		if !c.attempted {
			return nil
		}
		if err := s.putBack(ctx, c); err != nil {
			return fmt.Errorf("put back %s rules as they were: %w", c.family, err)
		}
		return nil
	})
	return errors.Join(err, s.plumbing.undo())
}

// putBack makes the owner's rules those that were found. What was read is not
// given back as text: a pod may have written it.
func (s *session) putBack(ctx context.Context, c *change) error {
	if c.live == nil { // the kernel tells without a program, which may be what is broken
		if h, err := look(s.ns); err == nil && !h.uses(c.tools.variant, c.family) {
			return nil
		}
	}
	now, err := s.saved(ctx, c)
	if err != nil {
		return err
	}
	text, lost := c.want.Owner.Rollback(c.live, now)
	if text != "" {
		if _, err := s.run(ctx, text, c.tools.restore[c.family], "--noflush"); err != nil {
			return err
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d rules of others in chains of the mesh are lost, the first: %.200q", len(lost), lost[0])
	}
	return nil
}
