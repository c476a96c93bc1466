//go:build linux

package netnsstore

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/netnsexec"
)

// Ref is a pod's open namespace. It stays open until the last Ref is closed, whatever becomes of the pod and the store. Its
// methods are safe for concurrent use.
type Ref struct {
	h      *handle
	closed atomic.Bool
}

// NetNS is the namespace, which the caller does not close.
func (r *Ref) NetNS() *netnsexec.NetNS { return r.h.ns }

// ID identifies the namespace.
func (r *Ref) ID() netnsexec.ID { return r.h.ns.ID() }

// Source is the origin of the knowledge of the namespace.
func (r *Ref) Source() Source { return r.h.source }

// Addrs are the addresses by which the namespace was proven.
func (r *Ref) Addrs() []netip.Addr { return slices.Clone(r.h.addrs) }

// Close gives the namespace up. A second Close does nothing.
func (r *Ref) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	return r.h.release()
}

// handle is an entry of the store. Those that share an open namespace share its count.
type handle struct {
	*shared
	uid    types.UID
	source Source
	named  bool // by the runtime
	addrs  []netip.Addr

	// sysctls were given to KeepSysctl: a map that is replaced, never changed. It belongs to the store's mutex.
	sysctls map[string]string
	// proven is false for what only the journal says, and for what has become doubtful. process is the one that was seen in
	// the namespace last, if any. Both belong to the store's mutex.
	proven  bool
	process podnetns.Found
}

func newHandle(ns *netnsexec.NetNS, c claim) *handle {
	return &handle{shared: &shared{ns: ns, count: 1}, uid: c.uid, source: c.source, named: c.named, addrs: plain(c.addrs), process: c.process, proven: true}
}

// shared is an open namespace and the number of those who need it.
type shared struct {
	ns    *netnsexec.NetNS
	mu    sync.Mutex
	count int
}

// acquire is for those who know that somebody needs it.
func (s *shared) acquire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
}

func (s *shared) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count--; s.count > 0 {
		return nil
	}
	return s.ns.Close()
}
