//go:build linux

package probes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Options are for [New].
type Options struct {
	// NetNS is the host's network namespace: netnsexec.Current for a process on the host's network, else
	// netnsexec.OpenHost("/proc/1/ns/net"). New does not close it.
	NetNS apply.Namespace
	// IPv4 and IPv6 are the source addresses that the host's connections get, such as those of a dialect's
	// NodeProxy.ProbeSources. A zero one leaves out its family; one is needed. They must not be addresses of the host.
	IPv4, IPv6 netip.Addr
	// Table is the name of the table of nftables. Default: meshcni-probes.
	Table string
}

// Entries maps addresses to their pods.
type Entries = map[netip.Addr]types.UID

// Result is the result of a call.
type Result struct {
	// Entries counts the addresses in the set afterwards.
	Entries int
	// Added and Removed count entries; one that changed its pod counts as added.
	Added, Removed int
	// Repaired is true if table, chains, sets or rules were missing or not ours: also after the first call.
	Repaired bool
	// Routed counts the addresses whose probes go over the pod's own interface by policy rules (see the package comment).
	Routed int

	entries Entries
}

// Set keeps the exemption of the host's probes in its kernel. It is safe for concurrent use by one process.
type Set struct {
	o        Options
	mu       sync.Mutex
	families []ruleset.Family
	reasons  map[ruleset.Family]string // why not, of the others; nil: nobody has looked
	routed   bool                      // whether we made policy rules
}

// New checks the options. It does nothing to the host.
func New(o Options) (*Set, error) {
	var errs []error
	if o.NetNS == nil {
		errs = append(errs, errors.New("no network namespace of the host"))
	}
	if !o.IPv4.IsValid() && !o.IPv6.IsValid() {
		errs = append(errs, errors.New("no source address"))
	}
	if o.IPv4.IsValid() && (!o.IPv4.Is4() || !usable(o.IPv4)) {
		errs = append(errs, fmt.Errorf("source address %s: not a single host's IPv4 address", o.IPv4))
	}
	if o.IPv6.IsValid() && (!o.IPv6.Is6() || o.IPv6.Is4In6() || o.IPv6.IsLinkLocalUnicast() || !usable(o.IPv6)) {
		errs = append(errs, fmt.Errorf("source address %s: not a single host's IPv6 address beyond its link", o.IPv6))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("set up probe exemption: %w", err)
	}
	o.Table = cmp.Or(o.Table, "meshcni-probes")
	return &Set{o: o}, nil
}

func usable(a netip.Addr) bool {
	return a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// source is the family's source address.
func (o Options) source(f ruleset.Family) netip.Addr {
	if f == ruleset.IPv4 {
		return o.IPv4
	}
	return o.IPv6
}

// look finds out which families are served. A family that is only switched off is: its rules do no harm, and are there
// when it is switched on.
func (s *Set) look() error {
	kernel, err := apply.Kernel(s.o.NetNS)
	if err != nil {
		return err
	}
	s.families, s.reasons = nil, map[ruleset.Family]string{}
	for _, f := range ruleset.Families {
		switch {
		case !s.o.source(f).IsValid():
			s.reasons[f] = "no source address is configured"
		case f == ruleset.IPv6 && kernel.IPv6 == redirect.PresenceAbsent:
			s.reasons[f] = "the host has no IPv6"
		default:
			s.families = append(s.families, f)
		}
	}
	if len(s.families) == 0 {
		return errors.New("the host has no family that has a source address")
	}
	return nil
}

// callTime bounds a call, which waits for others' transactions.
const callTime = 30 * time.Second

// Ensure makes sure that the rules are there and as wanted, and keeps the entries. It is cheap enough for each round of a
// drift loop: six requests to the kernel.
func (s *Set) Ensure(ctx context.Context) (Result, error) {
	return s.update(ctx, "ensure probe exemption", true, func(have Entries) Entries { return have })
}

// Sync makes the entries exactly those of want, one by one, so that an address that stays is exempt all the time; and it
// ensures the rules. A [*nodecontrol.UnexemptError] says which addresses could not be.
func (s *Set) Sync(ctx context.Context, want Entries) (Result, error) {
	clean := Entries{}
	for a, uid := range want {
		if err := check(uid, a); err != nil {
			return Result{}, fmt.Errorf("sync probe exemption: %w", err)
		}
		clean[a.Unmap()] = uid
	}
	return s.update(ctx, "sync probe exemption", true, func(Entries) Entries { return maps.Clone(clean) })
}

// Put adds a pod's addresses, in place of others that it had. An address that another pod had is now this pod's. The
// error is a [*nodecontrol.UnexemptError] if addresses are of a family that is left out; the others are then in.
func (s *Set) Put(uid types.UID, addrs []netip.Addr) error {
	var errs []error
	want := Entries{}
	for _, a := range addrs {
		errs = append(errs, check(uid, a))
		want[a.Unmap()] = uid
	}
	err := errors.Join(errs...)
	if err == nil {
		_, err = s.update(context.Background(), "exempt the probes of pod "+string(uid), false, func(have Entries) Entries {
			next := without(have, uid)
			maps.Copy(next, want)
			return next
		})
		return err
	}
	return fmt.Errorf("exempt the probes of a pod: %w", err)
}

// Delete removes the addresses that are still the pod's. A pod that has none is no error.
func (s *Set) Delete(uid types.UID) error {
	_, err := s.update(context.Background(), fmt.Sprintf("end the probe exemption of pod %q", string(uid)), false, func(have Entries) Entries {
		return without(have, uid)
	})
	return err
}

// Entries returns what is in force: none where a rule is missing, since then no probe is exempt.
func (s *Set) Entries() (Entries, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.reasons == nil {
		err = s.look()
	}
	var live tableState
	if err == nil {
		live, err = s.live(ctx)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read probe exemption: %w", err)
	case !live.intact:
		return nil, nil
	}
	return live.entries, nil
}

func without(have Entries, uid types.UID) Entries {
	next := maps.Clone(have)
	maps.DeleteFunc(next, func(_ netip.Addr, owner types.UID) bool { return owner == uid })
	return next
}

// uidForm matches the UIDs that the API server and the kubelet make: a UUID, or a static pod's hash.
var uidForm = regexp.MustCompile(`^[0-9A-Za-z-]+$`)

func check(uid types.UID, a netip.Addr) error {
	var errs []error
	if len(uid) > 64 || !uidForm.MatchString(string(uid)) {
		errs = append(errs, fmt.Errorf("pod UID %.80q: not up to 64 letters, digits and hyphens", string(uid)))
	}
	if !a.IsValid() || !usable(a.Unmap()) {
		errs = append(errs, fmt.Errorf("pod address %s: not one of a pod", a))
	}
	return errors.Join(errs...)
}

// update is one change. all: the families and the policy rules are looked at anew.
func (s *Set) update(ctx context.Context, what string, all bool, change func(Entries) Entries) (result Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	skipped := map[ruleset.Family][]netip.Addr{}
	served := func(have Entries) Entries {
		clear(skipped)
		next := maps.Clone(change(have))
		for a := range next {
			f := ruleset.FamilyOf(a)
			if _, left := s.reasons[f]; left {
				delete(next, a)
				skipped[f] = append(skipped[f], a)
			}
		}
		return next
	}
	if all || s.reasons == nil {
		err = s.look()
	}
	if err == nil {
		result, err = s.write(ctx, served)
	}
	if err == nil {
		result.Routed, err = s.route(result.entries, all)
	}
	if err != nil {
		return result, fmt.Errorf("%s: %w", what, err)
	}
	var unexempt nodecontrol.UnexemptError
	for _, f := range ruleset.Families {
		if addrs := skipped[f]; len(addrs) > 0 {
			unexempt.Addrs = append(unexempt.Addrs, addrs...)
			unexempt.Err = errors.Join(unexempt.Err, fmt.Errorf("%v: no probe exemption over %s: %s", addrs, f, s.reasons[f]))
		}
	}
	if unexempt.Err != nil {
		return result, &unexempt
	}
	return result, nil
}

// Remove removes all of ours and leaves the host as it was found.
func (s *Set) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.look()
	if err == nil {
		if err = s.dropTable(ctx, s.o.Table); errors.Is(err, apply.ErrNoBackend) {
			err = nil // there cannot be one
		}
		err = errors.Join(err, s.unroute())
	}
	if err != nil {
		return fmt.Errorf("remove probe exemption: %w", err)
	}
	return nil
}
