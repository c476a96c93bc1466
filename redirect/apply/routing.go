//go:build linux

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// fixture is an address of lo, or the route or rule of policy routing, that a program needs besides its rules.
type fixture struct {
	family  ruleset.Family
	kind    fixtureKind
	addr    netip.Addr
	routing ruleset.Routing
}

type fixtureKind string

const (
	loAddr     fixtureKind = ruleset.AddressChain
	localRoute fixtureKind = "route"
	policyRule fixtureKind = "rule"
)

// fixturesOf lists fixtures in the order in which they are added: the route before the rule that leads to it.
func fixturesOf(f ruleset.Family, addrs []netip.Addr, routing *ruleset.Routing) []fixture {
	var all []fixture
	for _, a := range addrs {
		if ruleset.FamilyOf(a) == f {
			all = append(all, fixture{family: f, kind: loAddr, addr: a})
		}
	}
	if routing != nil && *routing != (ruleset.Routing{}) {
		all = append(all, fixture{family: f, kind: localRoute, routing: *routing}, fixture{family: f, kind: policyRule, routing: *routing})
	}
	return all
}

// String returns the fixture in iproute2's words.
func (x fixture) String() string {
	p := ruleset.FamilyRuleset{Family: x.family, Routing: &x.routing}
	switch x.kind {
	case localRoute:
		return p.IPCommands()[1]
	case policyRule:
		return p.IPCommands()[0]
	}
	p.LoopbackAddrs = []netip.Addr{x.addr}
	return p.IPCommands()[0]
}

// plumbing adds and removes fixtures of one namespace. It opens its socket only for
// the first of them, since most pods have none.
type plumbing struct {
	ns     Namespace
	routes *rtnetlink.Conn // see conn
	// made are the fixtures that were added, for undo.
	made []fixture
	// unusable are those that the namespace does not accept now.
	unusable []Unusable
	loUp     bool
}

func (p *plumbing) conn() *rtnetlink.Conn {
	if p.routes == nil {
		p.routes = rtnetlink.New(p.ns, rtnetlink.Default)
	}
	return p.routes
}

func (p *plumbing) close() {
	if p.routes != nil {
		p.routes.Close()
	}
}

// make adds the fixtures that the programs need. Those that the namespace refuses
// because IPv6 is off are recorded as unusable.
func (p *plumbing) make(ctx context.Context, rs ruleset.Ruleset, families []ruleset.Family) (changed bool, err error) {
	for _, f := range families {
		program := rs.Family(f)
		if program == nil {
			continue
		}
		for _, x := range fixturesOf(f, program.LoopbackAddrs, program.Routing) {
			switch made, err := p.makeOne(ctx, x); {
			case err != nil:
				return changed, &familyError{family: f, op: "apply", err: fmt.Errorf("%s: %w", x, err)}
			case made:
				p.made = append(p.made, x)
				changed = true
			}
		}
	}
	return changed, nil
}

func (p *plumbing) makeOne(ctx context.Context, x fixture) (made bool, err error) {
	if err := p.raiseLo(ctx, x); err != nil {
		return false, err
	}
	err = p.add(x)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if !refusedForOff(x, err) {
		return err == nil, err
	}
	off, lerr := p.ipv6Off()
	switch {
	case lerr != nil:
		return false, errors.Join(err, lerr)
	case off:
		p.unusable = append(p.unusable, Unusable{Family: x.family, What: x.String(), Reason: ipv6OffReason})
		return false, nil
	}
	// Switched on meanwhile, or refused for another reason.
	err = p.add(x)
	return err == nil, err
}

// undo removes what make has made.
func (p *plumbing) undo() error {
	var errs []error
	for _, x := range slices.Backward(p.made) {
		if _, err := p.remove(x); err != nil {
			errs = append(errs, fmt.Errorf("put back as it was: %w", err))
		}
	}
	p.made = nil
	return errors.Join(errs...)
}

// drop removes fixtures of the owner's that the ruleset does not need.
func (p *plumbing) drop(owner ruleset.Ownership, rs ruleset.Ruleset, families []ruleset.Family) (changed bool, err error) {
	err = p.each(owner, rs, families, func(x fixture, wanted bool) error {
		if wanted {
			return nil
		}
		removed, err := p.remove(x)
		changed = changed || removed
		return err
	})
	return changed, err
}

// diff returns the owner's fixtures that are missing or should not be there.
func (p *plumbing) diff(owner ruleset.Ownership, rs ruleset.Ruleset, families []ruleset.Family) (diffs []ruleset.Difference, err error) {
	err = p.each(owner, rs, families, func(x fixture, wanted bool) error {
		there, err := p.has(x)
		if err != nil || there == wanted {
			return err
		}
		if !there && x.onLo() && x.family == ruleset.IPv6 {
			// Where IPv6 is off it cannot be there; once it is on, it is missing.
			if off, err := p.ipv6Off(); err != nil || off {
				return err
			}
		}
		kind := ruleset.KindMissing
		if there {
			kind = ruleset.KindUnexpected
		}
		diffs = append(diffs, ruleset.Difference{
			Kind: kind, Family: x.family, Table: ruleset.RoutingTable, Chain: string(x.kind), Position: 1, Rule: x.String(),
		})
		return nil
	})
	return diffs, err
}

// each calls fn for every fixture that a program of the owner's may have, the last made first.
func (p *plumbing) each(owner ruleset.Ownership, rs ruleset.Ruleset, families []ruleset.Family, fn func(x fixture, wanted bool) error) error {
	for _, f := range families {
		var wanted []fixture
		if program := rs.Family(f); program != nil {
			wanted = fixturesOf(f, program.LoopbackAddrs, program.Routing)
		}
		for _, x := range slices.Backward(fixturesOf(f, owner.LoopbackAddrs, &owner.Routing)) {
			if err := fn(x, slices.Contains(wanted, x)); err != nil {
				return fmt.Errorf("%s: %w", x, err)
			}
		}
	}
	return nil
}

// loIndex is the index of lo in every namespace (LOOPBACK_IFINDEX in linux/net/flow.h).
const loIndex = 1

func netlinkFamily(f ruleset.Family) byte {
	if f == ruleset.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (p *plumbing) change(do rtnetlink.Change, x fixture) error {
	switch x.kind {
	case localRoute:
		return p.conn().ChangeLocal(do, netlinkFamily(x.family), x.routing.Table, loIndex)
	case policyRule:
		r := x.routing
		return p.conn().ChangeRule(do, netlinkFamily(x.family), rtnetlink.Rule{Priority: r.Priority, Mark: r.Mark, Mask: r.Mask, Table: r.Table})
	}
	return p.conn().ChangeAddr(do, loIndex, x.addr)
}

// add makes a fixture; unix.EEXIST says that it is there.
func (p *plumbing) add(x fixture) error {
	if x.kind == policyRule && x.routing.Priority == 0 { // the kernel then chooses one, and takes the rule twice
		if there, err := p.has(x); err != nil || there {
			return cmp.Or(err, error(unix.EEXIST))
		}
	}
	return p.change(rtnetlink.Add, x)
}

// remove takes a fixture away, however often it is there.
func (p *plumbing) remove(x fixture) (changed bool, err error) {
	for {
		err = p.change(rtnetlink.Remove, x)
		// What each says of a thing that is not there; EAFNOSUPPORT is a family without a single policy rule or table.
		for _, gone := range []error{unix.ENOENT, unix.ESRCH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT} {
			if errors.Is(err, gone) {
				return changed, nil
			}
		}
		if err != nil {
			return changed, err
		}
		changed = true
	}
}

// has reads until it finds the fixture. The namespace may have any number of addresses, routes and rules, so what is read is bounded;
// errors.Is(err, nfnetlink.ErrLong) if it is not among that.
func (p *plumbing) has(x fixture) (found bool, err error) {
	family := netlinkFamily(x.family)
	switch x.kind {
	case localRoute:
		err = p.conn().Routes(family, rtnetlink.Routes{Table: x.routing.Table, Type: unix.RTN_LOCAL, Link: loIndex}, func(dst netip.Prefix) bool {
			found = dst.Bits() == 0
			return !found
		})
	case policyRule:
		err = p.conn().Rules(family, func(r rtnetlink.Rule) bool {
			found = x.leads(r)
			return !found && (x.routing.Priority == 0 || r.Priority <= x.routing.Priority)
		})
	default:
		err = p.conn().Addrs(family, loIndex, func(a netip.Addr) bool {
			found = a == x.addr
			return !found
		})
	}
	return found, err
}

// leads reports whether a policy rule is the fixture's.
func (x fixture) leads(r rtnetlink.Rule) bool {
	mask := cmp.Or(x.routing.Mask, ^uint32(0))
	return !r.Else && r.Mark == x.routing.Mark && r.Mask == mask && r.Table == x.routing.Table &&
		(x.routing.Priority == 0 || r.Priority == x.routing.Priority)
}

// Route adds what the rules of rs need besides themselves, the policy routing and addresses of lo, and leaves all rules alone. It is
// for rules that another program applies; [Backend.Apply] adds the same. It returns what the namespace does not accept now.
func Route(ctx context.Context, ns Namespace, rs ruleset.Ruleset) ([]Unusable, error) {
	if err := rs.Validate(); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, ns)
	if err != nil {
		return nil, err
	}
	defer unlock()
	h, err := look(ns)
	if err != nil {
		return nil, fmt.Errorf("look at network namespace: %w", err)
	}
	p := plumbing{ns: ns}
	defer p.close()
	if _, err := p.make(ctx, rs, h.families()); err != nil {
		return nil, errors.Join(err, p.undo())
	}
	return p.unusable, nil
}
