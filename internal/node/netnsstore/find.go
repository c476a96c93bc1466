//go:build linux

package netnsstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/netnsexec"
)

// Found is a pod's proven namespace, or why none is known.
type Found struct {
	Ref *Ref
	Err error
}

// Find is [Store.FindAll] for one pod. The caller closes the Ref.
func (s *Store) Find(ctx context.Context, p Pod) (*Ref, error) {
	found := s.FindAll(ctx, p)[p.UID]
	return found.Ref, found.Err
}

// FindAll returns the proven namespace of each pod, and keeps it. A namespace that is held already and has the pod's addresses
// needs no search. For all others together, it reads the processes, the records and the cache once. It looks into several pods at a
// time, and what it reads of one is bounded: a pod may have any number of addresses. The caller closes the
// Refs. An error is a [*NotFoundError], or wraps [ErrUID]; unless it is that, try again
// later. What is held but certainly not the pod's stays, as not proven.
//
// When the context ends, FindAll returns after the step that it is at, of which none takes long; what it has not found by then has the
// context's error.
func (s *Store) FindAll(ctx context.Context, pods ...Pod) map[types.UID]Found {
	found := make(map[types.UID]Found, len(pods))
	var held, search []Pod
	for _, p := range pods {
		if _, twice := found[p.UID]; twice {
			continue
		}
		p.Addrs = plain(p.Addrs)
		found[p.UID] = Found{}
		switch {
		case !podnetns.ValidUID(string(p.UID)) && p.Record == nil:
			found[p.UID] = Found{Err: fmt.Errorf("find network namespace of pod %q: %w", p.UID, ErrUID)}
		default:
			held = append(held, p)
		}
	}
	refs := make([]*Ref, len(held))
	each(held, func(i int, p Pod) {
		ref := s.Get(p.UID)
		if ref != nil && ref.h.stillHolds(ctx, p.Addrs) != nil {
			_ = ref.Close()
			ref = nil
		}
		refs[i] = ref
	})
	for i, p := range held {
		found[p.UID] = Found{Ref: refs[i]}
		if refs[i] == nil {
			search = append(search, p)
		}
	}
	if len(search) > 0 {
		s.search(ctx, search, found)
	}
	return found
}

// each looks into several pods at a time.
func each(pods []Pod, look func(i int, p Pod)) {
	var looks errgroup.Group
	looks.SetLimit(podnetns.Workers())
	for i, p := range pods {
		looks.Go(func() error {
			look(i, p)
			return nil
		})
	}
	_ = looks.Wait()
}

// stillHolds reports that the namespace has the pod's addresses, or, when none are known, those by which it was proven.
func (h *handle) stillHolds(ctx context.Context, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		addrs = h.addrs
	}
	return holds(ctx, h.ns, addrs)
}

// search asks all sources about pods, and adds what they say to found.
func (s *Store) search(ctx context.Context, pods []Pod, found map[types.UID]Found) {
	if ctx.Err() != nil {
		for _, p := range pods {
			found[p.UID] = Found{Err: fmt.Errorf("find network namespace of pod %s: %w", p.UID, context.Cause(ctx))}
		}
		return
	}
	known := s.candidates(pods)
	results := make([]Found, len(pods))
	each(pods, func(i int, p Pod) { results[i].Ref = s.named(ctx, p, known[p.UID]) })
	var rest []Pod
	for i, p := range pods {
		if results[i].Ref == nil {
			rest = append(rest, p)
		}
	}
	processes := s.processes(ctx, rest, known)
	each(pods, func(i int, p Pod) {
		if results[i].Ref != nil {
			return
		}
		tried := &NotFoundError{UID: p.UID}
		ref := s.first(ctx, p, known[p.UID], processes[p.UID], tried)
		if ref == nil {
			ref = s.overtaken(p.UID, known[p.UID])
		}
		results[i].Ref = ref
		if ref == nil {
			results[i].Err = tried
		}
	})
	for i, p := range pods {
		found[p.UID] = results[i]
	}
	for _, k := range known {
		for _, c := range k.candidates {
			if c.ns != nil {
				_ = c.ns.Close()
			}
		}
	}
}

// overtaken makes what was held when a search began unproven, if the search found that it is certainly not the pod's. If
// another has been put since, it returns that.
func (s *Store) overtaken(uid types.UID, was *knowledge) *Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[uid]
	if h == nil || h == was.held {
		if h != nil && isOther(was.heldErr) {
			h.proven = false
		}
		return nil
	}
	if !h.proven {
		return nil
	}
	h.acquire()
	return &Ref{h: h}
}

// isOther reports whether an error says that a namespace is certainly not the pod's, which nothing unreadable does.
func isOther(err error) bool { return errors.Is(err, ErrAddress) || errors.Is(err, ErrForeign) }

// knowledge is the knowledge of a pod without a look at its processes.
type knowledge struct {
	held       *handle
	heldErr    error        // why what is held is not taken
	candidates []*candidate // what is held is the first
}

// candidate is a source's answer about a pod: an open namespace, or why there is none.
type candidate struct {
	claim
	ns  *netnsexec.NetNS
	err error
}

// processes looks for a process of each pod that is in a namespace with the pod's addresses, or with those that a
// source knows.
func (s *Store) processes(ctx context.Context, pods []Pod, known map[types.UID]*knowledge) map[types.UID]podnetns.Result {
	wanted := make(map[string]podnetns.Wanted, len(pods))
	results := make(map[types.UID]podnetns.Result, len(pods))
	for _, p := range pods {
		addrs := p.Addrs
		for _, c := range known[p.UID].candidates {
			if len(addrs) == 0 {
				addrs = c.addrs
			}
		}
		if len(addrs) == 0 && p.Record == nil {
			results[p.UID] = podnetns.Result{Err: ErrNoAddress}
			continue
		}
		wanted[string(p.UID)] = podnetns.Wanted{Addrs: addrs, OwnUsers: p.OwnUsers}
	}
	all, err := podnetns.FindAll(ctx, podnetns.At(s.o.ProcRoot), wanted)
	for uid := range wanted {
		results[types.UID(uid)] = podnetns.Result{Err: err}
		if err == nil {
			results[types.UID(uid)] = all[uid]
		}
	}
	return results
}

// named keeps the namespace that the runtime has named, if it has named one that has the pod's addresses, and no other that has.
func (s *Store) named(ctx context.Context, p Pod, k *knowledge) *Ref {
	var one *candidate
	for _, c := range k.candidates {
		c.since = k.held
		if len(p.Addrs) > 0 {
			c.addrs = p.Addrs
		}
		if !c.named || c.err != nil || one != nil && one.ns.ID() == c.ns.ID() {
			continue
		}
		switch {
		case one == nil:
			one = c
		case holds(ctx, c.ns, c.addrs) != nil:
		case holds(ctx, one.ns, one.addrs) == nil:
			return nil
		default:
			one = c
		}
	}
	if one == nil {
		return nil
	}
	ref, err := s.keep(ctx, one)
	if err != nil {
		one.err = err
	}
	return ref
}

// keep takes a candidate's namespace.
func (s *Store) keep(ctx context.Context, c *candidate) (*Ref, error) {
	ns := c.ns
	c.ns = nil // it is take's
	return s.take(ctx, ns, c.claim)
}

// first keeps the first namespace that is proven to be the pod's: of several that the runtime has named the one in which the pod has
// processes, before one that processes alone show.
func (s *Store) first(ctx context.Context, p Pod, known *knowledge, process podnetns.Result, tried *NotFoundError) *Ref {
	agrees := func(c *candidate) bool {
		return c.ns != nil && process.Err == nil && process.Found.NetNS == c.ns.ID().String()
	}
	runs := slices.ContainsFunc(known.candidates, func(c *candidate) bool { return c.named && c.err == nil && agrees(c) })
	for _, named := range []bool{true, false} {
		for i, c := range known.candidates {
			if c.named != named {
				continue
			}
			switch {
			case c.err != nil:
			case agrees(c):
				c.process = process.Found
			case named && !runs, !named && isNone(process.Err):
			case process.Err == nil:
				c.err = contradicted(c.ns.ID(), process.Found)
			default:
				c.err = fmt.Errorf("whether a process contradicts cannot be told: %w", process.Err)
			}
			if c.err == nil {
				var ref *Ref
				if ref, c.err = s.keep(ctx, c); c.err == nil {
					return ref
				}
			}
			if known.held != nil && i == 0 {
				known.heldErr = c.err
			}
			tried.Tried = append(tried.Tried, Attempt{c.source, c.err})
		}
	}
	c := &candidate{claim: claim{uid: p.UID, source: Process, addrs: p.Addrs, process: process.Found, look: p.Record != nil, since: known.held}, err: process.Err}
	if c.err == nil {
		c.ns, c.err = process.Found.Open(s.o.ProcRoot)
	}
	if r := p.Record; c.err == nil && r != nil && r.NetNS.Ino != 0 && !r.NetNS.Is(c.ns.ID()) {
		c.err = fmt.Errorf("%w: %s is not that of the record", ErrForeign, c.ns.Path())
	}
	var ref *Ref
	if c.err == nil {
		ref, c.err = s.keep(ctx, c)
	} else if c.ns != nil {
		_ = c.ns.Close()
	}
	if c.err != nil {
		tried.Tried = append(tried.Tried, Attempt{Process, c.err})
	}
	return ref
}

// isNone reports whether a search says that no process of the pod is in a namespace that could be the pod's.
func isNone(err error) bool {
	return errors.Is(err, ErrNoProcess) || errors.Is(err, ErrAddress) || errors.Is(err, ErrNoAddress) || errors.Is(err, podnetns.ErrUsers)
}

// StillThere says for each pod whether the namespace that is held is still the pod's: nil, or why not. errors.Is tells
// [ErrAddress] and [ErrForeign]: it has certainly become another, Get does not return it any more, and Find looks anew;
// [ErrNotHeld]: there is none. Any other error means that it could not be told.
//
// It is for a loop over all pods of a node. A pod costs some reads of files and a netlink dump, about a quarter of a millisecond
// of processor time, a full node (110 pods) 25 ms. Pods whose namespace a process showed, which is gone, and those of which a record names
// another one, cost one search of all processes, together. When the context ends, it could not be told of those that are left.
func (s *Store) StillThere(ctx context.Context, pods ...Pod) map[types.UID]error {
	result := make(map[types.UID]error, len(pods))
	refs := make(map[types.UID]*Ref, len(pods))
	var held []Pod
	for _, p := range pods {
		if _, twice := result[p.UID]; twice {
			continue
		}
		result[p.UID] = nil
		ref := s.Get(p.UID)
		if ref == nil {
			result[p.UID] = fmt.Errorf("pod %s: %w", p.UID, ErrNotHeld)
			continue
		}
		defer func() { _ = ref.Close() }()
		refs[p.UID] = ref
		p.Addrs = plain(p.Addrs)
		held = append(held, p)
	}
	renamed := s.renamed(refs)
	errs, moved := make([]error, len(held)), make([]bool, len(held))
	each(held, func(i int, p Pod) {
		ref := refs[p.UID]
		errs[i] = ref.h.stillHolds(ctx, p.Addrs)
		moved[i] = errs[i] == nil && (renamed[p.UID] || !ref.h.named && !s.processOf(ref).Same(os.DirFS(s.o.ProcRoot)))
	})
	search := map[string]podnetns.Wanted{}
	for i, p := range held {
		result[p.UID] = errs[i]
		if moved[i] {
			if len(p.Addrs) == 0 {
				p.Addrs = refs[p.UID].h.addrs
			}
			search[string(p.UID)] = podnetns.Wanted{Addrs: p.Addrs, OwnUsers: p.OwnUsers}
		}
	}
	all, err := podnetns.FindAll(ctx, podnetns.At(s.o.ProcRoot), search)
	for uid := range search {
		process := all[uid]
		if err != nil {
			process.Err = err
		}
		result[types.UID(uid)] = s.agrees(refs[types.UID(uid)], process, renamed[types.UID(uid)])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, ref := range refs {
		if isOther(result[uid]) {
			ref.h.proven = false // if it is still held at all
		}
	}
	return result
}

func (s *Store) processOf(r *Ref) podnetns.Found {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.h.process
}

// renamed returns of which pods a record names another namespace than the one that is held.
func (s *Store) renamed(refs map[types.UID]*Ref) map[types.UID]bool {
	renamed := map[types.UID]bool{}
	for _, t := range s.told(s.o.Inventory.Recent(nil), func(uid types.UID) bool { return refs[uid] != nil }) {
		if ref := refs[t.uid]; ref != nil && t.err == nil && t.id != (netnsexec.ID{}) && t.id != ref.ID() {
			renamed[t.uid] = true
		}
	}
	return renamed
}

// agrees compares a namespace with where the pod's process is, and remembers that process. renamed: a record names another namespace.
func (s *Store) agrees(r *Ref, process podnetns.Result, renamed bool) error {
	switch err := process.Err; {
	case isNone(err), r.h.named && errors.Is(err, podnetns.ErrSeveral):
		process.Found = podnetns.Found{} // no process contradicts
	case err != nil:
		return err
	case process.Found.NetNS == r.ID().String():
	case renamed || !r.h.named:
		return contradicted(r.ID(), process.Found)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.h.process = process.Found
	return nil
}

func contradicted(id netnsexec.ID, by podnetns.Found) error {
	return fmt.Errorf("%w: it is %s, but process %d is in %s with the same addresses", ErrForeign, id, by.PID, by.NetNS)
}
