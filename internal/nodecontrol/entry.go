package nodecontrol

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/status"
)

// entry is the controller's memory of a pod. All of it can be found out again: after a restart it is empty.
type entry struct {
	uid types.UID

	mu    sync.Mutex // held by the one who works on the pod
	mesh  *dialect.Dialect
	ns    NetNS        // nil: not known
	addrs []netip.Addr // that the runtime named, the primary one first
	// handed is the attachment that a proxy accepted, and the time; see Controller.proxies.
	handed handed
	held   held
	// ours: rules of the mesh in the namespace are ours.
	ours bool
	// given: another agent has it, since [Controller.Release].
	given bool
	// captured: it was, when it was last seen.
	captured bool
	// unexempt are addresses that cannot be in the set of probes.
	unexempt []netip.Addr
	// drift are the kinds of drift that are being mended.
	drift []status.Code
	// unusable is the routing that the namespace does not take.
	unusable []string
	backend  string
	// unmoved is the reason why connections do not move from one proxy to the next; empty: they do.
	unmoved string
	// left is the time at which the pod ceased to be redirected, heard that since which its annotation is gone too, busy that at which the proxy was last seen to carry
	// something of it. They count while it drains.
	left, heard, busy time.Time
	tunnel            meter
	// queries: DNS queries of it may have yet to be answered by the proxy, so that their sockets go on to ask that.
	queries bool
	// deaf is the time since which nobody listens for peers; zero: somebody does, or nobody has looked.
	deaf time.Time
	// told is the annotation's last value of ours, toldOn the object of the cache that it was set on; while the cache has that, it is behind.
	told   string
	toldOn *corev1.Pod
	// followed is In or Out, as the pod was last made; turns are those from one to the other, writes those of an annotation that did not stay.
	followed      machine.Choice
	turns, writes pace
	// flapping: the pod is not followed now, since it joins and leaves again and again.
	flapping bool

	// The rest is guarded by the controller's mu.
	state     status.Pod
	share     nodeproxy.Workload // for a snapshot
	shared    bool               // whether it belongs there
	announced status.Code        // the failure that an event was sent about
	draining  bool               // it has left, and the proxy has it or carries connections of it; changed with the entry's mu held too
	released  bool               // it was looked at since all pods are given back, so its state is about that
	done      bool               // its containers have ended and nothing is left of it, so it is not looked at again
}

// handed names a namespace that was given to a proxy.
type handed struct {
	ns    netnsexec.ID
	since uint64
}

// held tells a pod that a proxy may have from one that none has.
type held uint8

const (
	heldUnknown held = iota // since the start; a pod that may have been captured may be held
	heldNo
	heldYes
)

// id returns the namespace's identity, zero if it is not known.
func (e *entry) id() netnsexec.ID {
	if e.ns == nil {
		return netnsexec.ID{}
	}
	return e.ns.NetNS().ID()
}

// setNS takes over a reference to the pod's namespace. It keeps the open one if it is the same.
func (c *Controller) setNS(e *entry, ref NetNS) error {
	if e.ns != nil && ref != nil && e.id() == ref.NetNS().ID() {
		return ref.Close()
	}
	before := e.ns
	e.ns, e.unusable, e.unmoved, e.deaf = ref, nil, "", time.Time{}
	c.mu.Lock()
	e.share.NetNS = nil
	if ref != nil {
		e.share.NetNS = ref.NetNS()
	}
	c.mu.Unlock()
	if before != nil {
		return before.Close()
	}
	return nil
}

// entry returns the pod's entry, and makes it if there is none.
func (c *Controller) entry(uid types.UID) (is *entry) {
	c.entries.Change(uid, func(e **entry) {
		if *e == nil {
			*e = &entry{uid: uid}
			(*e).state.ID.UID = string(uid)
		}
		is = *e
	})
	return is
}

// drop removes the entry of a pod that is gone.
func (c *Controller) drop(e *entry) error {
	c.mu.Lock()
	c.entries.Drop(func(uid types.UID, _ *entry) bool { return uid == e.uid })
	for id, to := range c.attached {
		if to.uid == e.uid {
			delete(c.attached, id)
		}
	}
	c.wake()
	c.mu.Unlock()
	return c.setNS(e, nil)
}

// attachedTo is the owner of an attachment.
type attachedTo struct {
	uid types.UID
	ns  netnsexec.ID
}

// pod returns the pod that the runtime knows by the UID, or nil.
func (c *Controller) pod(uid types.UID) *corev1.Pod { return c.opts.Pods.ByUID(uid) }

// uidOf returns the UID by which the runtime knows a pod.
func (c *Controller) uidOf(pod *corev1.Pod) types.UID { return c.opts.Pods.RuntimeUID(pod) }

// setState publishes what a pod is like. It returns what it was like before.
func (c *Controller) setState(e *entry, s status.Pod) (before status.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = e.state
	if s.ID == (status.ID{}) {
		s.ID = before.ID
	}
	s.Detail, s.ExchangeResets = truncate.Finding(s.Detail), truncate.Finding(s.ExchangeResets)
	s.Since = before.Since
	if s.State != before.State || s.Reason != before.Reason || s.Since.IsZero() {
		s.Since = time.Now()
	}
	e.state = s
	c.wake()
	return before
}

// unshare takes a pod out of the snapshots that are asked for from now on.
func (c *Controller) unshare(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.shared = false
}

// wake tells those who wait that a state changed. The caller holds mu.
func (c *Controller) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// closeAll gives up the namespaces when the controller ends.
func (c *Controller) closeAll() error {
	var errs []error
	for _, e := range c.entries.All() {
		e.mu.Lock()
		errs = append(errs, c.setNS(e, nil))
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}
