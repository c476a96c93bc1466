//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// tableName is our table's name, and the first part of those of ipsets.
const tableName = "meshcni-probes"

// chainName is that of iptables' chains.
var chainName = strings.ReplaceAll(strings.ToUpper(tableName), "-", "_")

// Options are for [New].
type Options struct {
	// NetNS is the host's network namespace: netnsexec.Current for a process on the host's network, else
	// netnsexec.OpenHost("/proc/1/ns/net"). New does not close it.
	NetNS apply.Namespace
	// IPv4 and IPv6 are the source addresses that the host's connections get, such as those of a dialect's
	// NodeProxy.ProbeSources. A zero one leaves out its family; one is needed. They must not be addresses of the host.
	IPv4, IPv6 netip.Addr
	// Backend keeps the set. Auto, or empty, stays with the one that has it, else takes Nftables, else Iptables.
	Backend ruleset.Backend
	// Path and Root say where the iptables programs are; see [apply.Options]. Nftables needs none.
	Path, Root string
}

// Entries maps addresses to their pods.
type Entries = map[netip.Addr]types.UID

// Result is the result of a call.
type Result struct {
	// Backend is Nftables, IptablesNFT or IptablesLegacy.
	Backend ruleset.Backend
	// Entries counts the addresses in the set afterwards.
	Entries int
	// Added and Removed count entries; one that changed its pod counts as added.
	Added, Removed int
	// Repaired is true if tables, chains, sets or rules were missing or not ours: also after the first call.
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
	reasons  map[ruleset.Family]string // why not, of the others
	now      backend                   // nil: not chosen yet
	other    backend                   // the one that is to have nothing
	routed   bool                      // whether we made policy rules
}

// backend keeps entries in force. A call that fails may have done a part; the next one does the rest.
type backend interface {
	name() ruleset.Backend
	// there reports whether anything of ours is in the kernel.
	there(ctx context.Context) (bool, error)
	// read returns the entries.
	read(ctx context.Context) (Entries, error)
	// intact reports whether the rules that use the entries are as wanted.
	intact(ctx context.Context) (bool, error)
	// update makes the entries those that change returns of those that are there. rules is false where reading the
	// rules too is not worth it.
	update(ctx context.Context, change func(Entries) Entries, rules bool) (Result, error)
	// remove removes all of ours.
	remove(ctx context.Context) error
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
	if _, err := ruleset.ParseBackend(string(o.Backend)); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("set up probe exemption: %w", err)
	}
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

// ipset is the name of the family's set with the backend of iptables.
func ipset(f ruleset.Family) string { return tableName + suffix[f] }

var suffix = map[ruleset.Family]string{ruleset.IPv4: "-v4", ruleset.IPv6: "-v6"}

// callTime bounds a call, which waits for the iptables lock and for others' transactions.
const callTime = 30 * time.Second

// Ensure makes sure that the rules are there and as wanted, and keeps the entries. It is cheap enough for each round of a
// drift loop: with nftables six requests to the kernel, with iptables up to eight processes.
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
	have, err := func() (Entries, error) {
		b := s.now
		if b == nil {
			c, err := s.pick(ctx)
			if err != nil {
				return nil, err
			}
			b = c.use
		}
		if intact, err := b.intact(ctx); err != nil || !intact {
			return nil, err
		}
		return b.read(ctx)
	}()
	if err != nil {
		return nil, fmt.Errorf("read probe exemption: %w", err)
	}
	return have, nil
}

func without(have Entries, uid types.UID) Entries {
	next := maps.Clone(have)
	maps.DeleteFunc(next, func(_ netip.Addr, owner types.UID) bool { return owner == uid })
	return next
}

// uidForm matches the UIDs that the API server and the kubelet make: a UUID, or a static pod's hash.
var uidForm = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

func check(uid types.UID, a netip.Addr) error {
	var errs []error
	if !uidForm.MatchString(string(uid)) {
		errs = append(errs, fmt.Errorf("pod UID %.80q: not up to 64 letters, digits and hyphens", string(uid)))
	}
	if !a.IsValid() || !usable(a.Unmap()) {
		errs = append(errs, fmt.Errorf("pod address %s: not one of a pod", a))
	}
	return errors.Join(errs...)
}

// update is one change, on the backend of choice, of which the other then has nothing.
func (s *Set) update(ctx context.Context, what string, rules bool, change func(Entries) Entries) (result Result, err error) {
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
	if rules || s.now == nil {
		err = s.look()
	}
	made := false
	if err == nil {
		made, err = s.settle(ctx)
	}
	if err == nil && rules {
		var moved bool
		moved, err = s.alone(ctx)
		made = made || moved
	}
	if err == nil {
		result, err = s.now.update(ctx, served, rules)
		result.Backend, result.Repaired = s.now.name(), result.Repaired || made
	}
	if err == nil {
		result.Routed, err = s.route(result.entries, rules)
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

// Remove removes all of ours and leaves the host as it was found. Tables of iptables-nft that hold nothing go too.
func (s *Set) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.look()
	if err == nil {
		for _, b := range s.backends() {
			there, terr := b.there(ctx)
			if errors.Is(terr, apply.ErrNoBackend) {
				continue
			}
			if terr == nil && there {
				terr = b.remove(ctx)
			}
			err = errors.Join(err, terr)
		}
		s.now = nil
		err = errors.Join(err, s.unroute())
	}
	if err != nil {
		return fmt.Errorf("remove probe exemption: %w", err)
	}
	return nil
}
