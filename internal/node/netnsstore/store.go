//go:build linux

package netnsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/netnsexec"
)

// Source is the origin of the knowledge of a namespace. The package's documentation says what each proves.
type Source string

// The sources, in the order in which they are asked.
const (
	Attached Source = "attachment" // [Store.Put]
	Journal  Source = "journal"    // run_dir/netns, of an earlier run
	Runtime  Source = "runtime"    // the runtime's hook
	Record   Source = "record"     // the plugin's record of the attachment
	Cache    Source = "cache"      // libcni's cache
	Process  Source = "process"    // a process of the pod
)

// Options say where a store looks.
type Options struct {
	// RunDir is the run_dir, with the journal. Its path is the same for the host and for us. Empty:
	// no journal.
	RunDir string
	// Inventory has the node's attachments. Nil: none are known.
	Inventory *inventory.Inventory
	// Fleeting: nothing is held or noted, so each Find searches, and its Ref alone keeps the namespace open.
	Fleeting bool
	// HostRoot is the root directory to which the paths of namespaces belong, and in whose mounts the journal's are made:
	// "/proc/1/root" in a container that shares the host's processes. The mounts of a container end with it. Empty: our own.
	HostRoot string
	// ProcRoot is the root of a proc file system with the pods' processes; empty: /proc.
	ProcRoot string
	// Log is told of entries that are discarded, and why there is no journal. Nil: nobody is.
	Log *slog.Logger
}

// Attachment is a pod's network that the runtime is setting up.
type Attachment struct {
	// UID is the pod's, as the runtime gives it.
	UID types.UID
	// NetNS is the path that the runtime gave.
	NetNS string
	// Addrs are the addresses that the attachment was given; at least one.
	Addrs []netip.Addr
}

// Pod is a pod whose namespace is wanted.
type Pod struct {
	// UID is the one that the runtime and the control groups use: a static pod's copy at the API server has another.
	UID types.UID
	// Addrs are all known addresses, in any order.
	Addrs []netip.Addr
	// OwnUsers: the pod has a user namespace of its own (hostUsers: false).
	OwnUsers bool
	// Record is of the pod's attachment, or zero, if the pod is only to be looked at: what is found then needs no address if none is known,
	// and no UID if the record has the namespace. A namespace with other numbers than the record's is not taken. nil: the pod is to be changed.
	Record *attachment.Record
}

// Store is the namespaces of a node's pods. It is safe for concurrent use. Make one with [New].
type Store struct {
	o       Options
	journal journal

	mu     sync.Mutex
	held   map[types.UID]*handle
	closed bool
}

// New reads the journal, removes what is half-written there, and returns a store with the rest. A journal's entry is not
// taken for the pod's namespace until [Store.Find] or [Store.Put] has proven it. The caller calls Close.
func New(o Options) *Store {
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Inventory == nil {
		o.Inventory = inventory.New(inventory.Options{})
	}
	s := &Store{o: o, journal: journal{root: o.HostRoot, log: o.Log}}
	if o.RunDir != "" && !o.Fleeting {
		s.journal.dir = filepath.Join(o.RunDir, dirName)
	}
	s.held = s.journal.load(filepath.Join(o.ProcRoot, bootID))
	return s
}

// Put keeps the namespace of a pod that is being set up, in place of another that the pod had. The file stays the caller's.
// Putting it again, or with another attachment of the pod, is no error. Errors are [ErrUID], [ErrNoAddress], [ErrAddress],
// [ErrForeign] if another pod has it, those of [netnsexec.FromFile], os.ErrClosed after Close, or that its addresses could not
// be read. That there is no journal is no error.
func (s *Store) Put(a Attachment, file syscall.Conn) (*Ref, error) {
	ref, err := s.put(a, file)
	if err != nil {
		return nil, fmt.Errorf("keep network namespace of pod %s: %w", a.UID, err)
	}
	return ref, nil
}

func (s *Store) put(a Attachment, file syscall.Conn) (*Ref, error) {
	if !podnetns.ValidUID(string(a.UID)) {
		return nil, ErrUID
	}
	ns, err := netnsexec.FromFile(file, a.NetNS)
	if err != nil {
		return nil, err
	}
	return s.take(context.Background(), ns, claim{uid: a.UID, source: Attached, named: true, addrs: a.Addrs})
}

// claim is a namespace with the knowledge that a source claims of it.
type claim struct {
	uid     types.UID
	source  Source
	named   bool // by the runtime
	addrs   []netip.Addr
	process podnetns.Found
	look    bool // no address is needed if none is known
	// since was held when the search began whose result this is. It counts no more if another came meanwhile.
	since *handle
}

var errOvertaken = errors.New("another namespace of the pod was put meanwhile")

// take proves the addresses and that no other pod has the namespace, which it owns, and keeps it.
func (s *Store) take(ctx context.Context, ns *netnsexec.NetNS, c claim) (*Ref, error) {
	s.mu.Lock()
	var before []netip.Addr
	if h := s.held[c.uid]; h != nil {
		before = h.addrs
	}
	s.mu.Unlock()
	kept, err := proven(ctx, ns, c.addrs, before)
	if err != nil && !(c.look && errors.Is(err, ErrNoAddress)) {
		return nil, errors.Join(err, ns.Close())
	}
	if s.o.Fleeting {
		return &Ref{h: newHandle(ns, c)}, nil
	}
	ref, replaced, err := s.install(ns, c, kept)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	if replaced != nil {
		if err := replaced.release(); err != nil {
			s.o.Log.Warn("cannot close a network namespace that was replaced", "uid", string(c.uid), "error", truncate.Finding(err.Error()))
		}
	}
	_ = s.sync(c.uid) // the pod is served without a journal too; Journal says so
	return ref, nil
}

// install makes ns the pod's, unless another pod has it. kept are addresses that it was known by before and still has. replaced is what
// the caller is to release instead.
func (s *Store) install(ns *netnsexec.NetNS, c claim, kept []netip.Addr) (ref *Ref, replaced *shared, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, os.ErrClosed
	}
	if c.source != Attached && s.held[c.uid] != c.since {
		return nil, nil, errOvertaken
	}
	for uid, other := range s.held {
		if uid != c.uid && other.proven && other.ns.ID() == ns.ID() {
			return nil, nil, fmt.Errorf("%w: %s is that of pod %s", ErrForeign, ns.ID(), uid)
		}
	}
	h := newHandle(ns, c)
	if before := s.held[c.uid]; before != nil && before.ns.ID() == ns.ID() {
		// The descriptor that is open already stays, with what else is known of the namespace.
		h.shared, replaced = before.shared, h.shared
		h.addrs, h.named = union(h.addrs, kept), h.named || before.named
		h.sysctls = before.sysctls
		if h.process.PID == 0 {
			h.process = before.process
		}
	} else if before != nil {
		replaced = before.shared
	}
	s.held[c.uid] = h
	h.acquire()
	return &Ref{h: h}, replaced, nil
}

// union appends what a slice lacks, to a copy.
func union[T comparable](to, from []T) []T {
	to = slices.Clone(to)
	for _, v := range from {
		if !slices.Contains(to, v) {
			to = append(to, v)
		}
	}
	return to
}

// KeepSysctl keeps a value that a sysctl of the pod's namespace had, in place of an earlier one, until the namespace is forgotten or
// another takes its place. The error is [ErrNotHeld], or says that the journal does not have it: a restart would lose the value.
func (s *Store) KeepSysctl(uid types.UID, name, value string) error {
	s.mu.Lock()
	h := s.held[uid]
	if h == nil {
		s.mu.Unlock()
		return fmt.Errorf("keep sysctl %s of pod %s: %w", name, uid, ErrNotHeld)
	}
	all := map[string]string{name: value}
	for other, holder := range h.sysctls {
		if other != name {
			all[other] = holder
		}
	}
	h.sysctls = all
	s.mu.Unlock()
	return s.sync(uid)
}

// KeptSysctl returns what KeepSysctl was told, of this run or, by the journal, an earlier one; false: nothing, or of another namespace.
func (s *Store) KeptSysctl(uid types.UID, name string) (value string, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[uid]; h != nil {
		value, kept = h.sysctls[name]
	}
	return value, kept
}

// Get returns the pod's proven namespace, if the store has one; otherwise nil. The caller closes it.
func (s *Store) Get(uid types.UID) *Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[uid]; h != nil && h.proven {
		h.acquire()
		return &Ref{h: h}
	}
	return nil
}

// Forget gives up the pod's namespace and its journal entry. Refs that are out stay open. An error says that the entry
// could not be removed; [Store.Retain] tries again.
func (s *Store) Forget(uid types.UID) error {
	s.mu.Lock()
	h := s.held[uid]
	delete(s.held, uid)
	s.mu.Unlock()
	var err error
	if h != nil {
		err = h.release()
	}
	return errors.Join(err, s.sync(uid))
}

// Retain forgets the pods that are not wanted any more, in the store and in the journal. wanted is asked for one pod at a time
// and must know of each pod that was Put: ask a cache of pods, not an earlier list. The error names what could not be removed.
func (s *Store) Retain(wanted func(types.UID) bool) error {
	uids, err := s.journal.uids()
	s.mu.Lock()
	for uid := range s.held {
		if !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	s.mu.Unlock()
	errs := []error{err}
	for _, uid := range uids {
		if !wanted(uid) {
			errs = append(errs, s.Forget(uid))
		}
	}
	return errors.Join(errs...)
}

// Known lists the pods of which a namespace is held, proven or not, in no order. Right after New, they are those of the
// journal: the pods that an agent before us cared for.
func (s *Store) Known() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.held))
}

// Journal returns why a restart would not find all namespaces in the journal, or nil.
func (s *Store) Journal() error { return s.journal.status() }

// Close gives up all namespaces. The journal stays, for the next store. Refs that are out stay open.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for uid, h := range s.held {
		errs = append(errs, h.release())
		delete(s.held, uid)
	}
	return errors.Join(errs...)
}

// sync makes the journal agree with the store about a pod. Whoever comes last sees the latest state, so the entry of a pod that
// is put and forgotten at the same time ends right.
func (s *Store) sync(uid types.UID) error {
	return s.journal.sync(uid, func() (h *handle, ok bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if now := s.held[uid]; now != nil {
			now.acquire()
			c := *now // its sysctls change
			h = &c
		}
		return h, !s.closed
	})
}
