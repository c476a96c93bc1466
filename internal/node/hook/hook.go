package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/hookfile"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/nri"
	"github.com/meshcni/meshcni/internal/node/runtimeclass"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// Mode is what is done about a pod that must be captured and is not.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"    // Capture with the rights for it, else Gate; Off where the runtime has no hook
	Off     Mode = "off"     // nothing
	Gate    Mode = "gate"    // its containers are refused
	Capture Mode = "capture" // it is captured; where that fails, its containers are refused
)

// UnmarshalText accepts the names of the modes.
func (m *Mode) UnmarshalText(text []byte) error {
	if !slices.Contains([]Mode{Auto, Off, Gate, Capture}, Mode(text)) {
		return fmt.Errorf("%q: not one of auto, off, gate and capture", text)
	}
	*m = Mode(text)
	return nil
}

// Resolve returns what Auto comes to: there is a socket or not, and this process may enter pods' namespaces or not.
func (m Mode) Resolve(socket string) Mode {
	if m != Auto {
		return m
	}
	if _, err := os.Stat(socket); err != nil {
		return Off
	}
	if mayCapture() {
		return Capture
	}
	return Gate
}

// mayCapture reports whether this process may enter network namespaces and change their rules.
func mayCapture() bool {
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return false
	}
	has := func(capability int) bool { return sets[capability/32].Effective&(1<<(capability%32)) != 0 }
	return has(unix.CAP_SYS_ADMIN) && has(unix.CAP_NET_ADMIN)
}

const (
	// shortWait is how long any call waits for an attempt. The runtime has one lock over the hooks of all pods, so a call waits longer, up to maxWait
	// and to its share of the runtime's patience, only while no others have done so: the hook holds the lock for one part in spareShare of the time.
	shortWait           = 100 * time.Millisecond
	maxWait             = time.Second
	runShare, gateShare = 2, 4
	spareShare          = 20
	// attemptTime bounds an attempt, for which the runtime does not wait as long as that, and attachTime in it the wait for a proxy on the node.
	attemptTime = 10 * time.Second
	attachTime  = time.Second
	// largePod is the size of annotations, in bytes, from which on a pod may cost much memory; largeAtOnce bounds the attempts at such pods.
	largePod    = 16 << 10
	largeAtOnce = 2
	// forgetTime bounds what is done about a pod that has gone.
	forgetTime = time.Second
	// watchTime bounds the wait for a pod that the node's watch does not have yet; then the API server is asked.
	watchTime = 500 * time.Millisecond
	// workers bounds the pods that are dealt with at a time after the runtime has named all of them.
	workers = 4
	// sweepEvery is the interval at which it is looked for pods that have gone.
	sweepEvery = 10 * time.Second
	// ifName is a pod's first interface, as the kubelet's runtimes call it.
	ifName = "eth0"
)

// Options configure a [Hook]. All are required but what says otherwise.
type Options struct {
	Socket string
	// Mode is Gate or Capture.
	Mode Mode
	// Plugin decides and captures. Its Dialects, Identity and OpenPods count; the rest is the hook's.
	Plugin plugin.Plugin
	// Config returns the plugin's present configuration.
	Config func() netconf.Config
	// Inventory has the records of the plugin's ADDs.
	Inventory *inventory.Inventory
	// Pod is the node's watch. Agent serves the pods of a proxy on the node, if there is one.
	Pod    func(context.Context, status.ID) (agentsock.Pod, error)
	Attach func(context.Context, agentsock.Attachment, *os.File) (agentsock.Attached, error)
	Detach func(context.Context, attachment.ID) error
	// Held is told of a pod whose containers are refused, once for each reason. It may be called concurrently.
	Held func(pod status.ID, why string)
	Log  *slog.Logger
	// OnRequest is told of each request that has been answered; see [nri.Options]. Nil: nobody is told.
	OnRequest func(method, outcome string)
	// Conn is the connection of a process that the runtime has started, in place of those to Socket. Pod, Attach and Detach are then left out:
	// the node's agent is another process. Nil: there is none.
	Conn net.Conn
}

// Hook deals with the pods of which the runtime tells.
type Hook struct {
	o      Options
	client *nri.Client

	ctx     context.Context // of Run: attempts outlive the call that began them
	working sync.WaitGroup
	large   chan struct{}
	attempt time.Duration // bounds one; attemptTime

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	spare     time.Duration // for which calls may wait beyond shortWait
	spareAt   time.Time     // when that was counted; zero: never
}

// sandbox is what is known of a pod's. The hook's mu guards it.
type sandbox struct {
	pod     nri.Pod
	at      time.Time     // when it was heard of first
	settled bool          // nothing is left to do: it is captured, or not to be
	trying  chan struct{} // closed at the end of the attempt that runs; nil: none does
	err     error         // why the last attempt failed
	told    string        // the reason that people have been told
}

// New returns a hook, which does nothing before [Hook.Run].
func New(o Options) *Hook {
	h := &Hook{o: o, sandboxes: map[string]*sandbox{}, large: make(chan struct{}, largeAtOnce), attempt: attemptTime}
	h.client = nri.New(nri.Options{
		Socket: o.Socket, Conn: o.Conn, Name: o.Plugin.Identity.WithDefaults().Plugin, Index: hookfile.Index, Handler: h, Gate: true, Log: o.Log, OnRequest: o.OnRequest,
	})
	return h
}

// network stands for that of CNI in the records of pods that the hook has dealt with.
func (h *Hook) network() string { return h.o.Plugin.Identity.WithDefaults().Name + ".nri" }

// Run is the hook, until the context ends, or Conn does.
func (h *Hook) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	h.ctx = ctx
	defer h.working.Wait()
	defer cancel()
	h.working.Go(h.sweep)
	return h.client.Run(ctx)
}

// sweep forgets the pods whose namespaces have gone: a runtime that has restarted may not tell of the end of those that it had before.
func (h *Hook) sweep() {
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-time.After(sweepEvery):
		}
		for _, p := range h.Pods() {
			if p.NetNS == "" {
				continue
			}
			_, _, unseen := netnsOf(filepath.Dir(p.NetNS)) // by this agent
			if _, _, gone := netnsOf(p.NetNS); errors.Is(gone, fs.ErrNotExist) && unseen == nil {
				h.RemovePodSandbox(p)
			}
		}
	}
}

// Mode returns what is done about a pod that must be captured and is not.
func (h *Hook) Mode() Mode { return h.o.Mode }

// State returns the connection's state.
func (h *Hook) State() nri.State { return h.client.State() }

// Pods returns the pods as the runtime names them: those of the last connection, and those that have come since.
func (h *Hook) Pods() []nri.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	pods := make([]nri.Pod, 0, len(h.sandboxes))
	for _, s := range h.sandboxes {
		pods = append(pods, s.pod)
	}
	return pods
}

// Rows returns the runtime's word on the pods that have a network of their own, for [inventory.Options].
func (h *Hook) Rows() (rows []inventory.Row) {
	for _, p := range h.Pods() {
		ns, _, err := netnsOf(p.NetNS)
		if err != nil || p.Network != nri.NetworkOwn {
			continue
		}
		rows = append(rows, inventory.Row{
			ID: attachment.ID{ContainerID: p.ID}, Pod: id(p), NetNS: attachment.NetNS{Path: p.NetNS, Dev: ns.Dev, Ino: ns.Ino}, Addrs: p.Addrs,
		})
	}
	return rows
}

// Synchronize implements [nri.Handler]. Pods that run already are for repair to find: here nothing can be done before their first packet. What has
// come since stays: the runtime goes on meanwhile, and may have told another process of ours of a pod before it told this one.
func (h *Hook) Synchronize(ctx context.Context, pods []nri.Pod, since time.Time) {
	here := map[string]bool{}
	var ids []attachment.ID
	h.mu.Lock()
	for i, p := range pods {
		p = placed(p)
		pods[i], here[p.ID] = p, true
		ids = append(ids, h.recordID(p))
		if s := h.sandboxes[p.ID]; s != nil {
			s.pod = p
		} else {
			h.sandboxes[p.ID] = &sandbox{pod: p, settled: p.Ran, at: since}
		}
	}
	for id, s := range h.sandboxes {
		if !here[id] && s.trying == nil && s.at.Before(since) {
			delete(h.sandboxes, id)
		}
	}
	h.mu.Unlock()
	if err := h.o.Inventory.Retain(h.network(), ids, since); err != nil {
		h.o.Log.Warn("records of pods that have gone stay", "error", err.Error())
	}
	slots := make(chan struct{}, workers)
	for _, p := range pods {
		if p.Ran {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		h.working.Go(func() {
			defer func() { <-slots }()
			_ = h.settle(ctx, p, h.attempt) // its containers are refused then
		})
	}
}

// RunPodSandbox implements [nri.Handler].
func (h *Hook) RunPodSandbox(ctx context.Context, p nri.Pod) {
	if err := h.within(ctx, p, h.State().Timeout/runShare); err != nil {
		h.o.Log.Warn("a pod is held at the container runtime's hook", "namespace", p.Namespace, "pod", p.Name, "error", err.Error())
	}
}

// CreateContainer implements [nri.Handler].
func (h *Hook) CreateContainer(ctx context.Context, p nri.Pod) error {
	err := h.within(ctx, p, h.State().Timeout/gateShare)
	if err == nil {
		return nil
	}
	h.mu.Lock()
	s := h.sandboxes[p.ID]
	news := s != nil && s.told != err.Error()
	if news {
		s.told = err.Error()
	}
	h.mu.Unlock()
	if news {
		h.working.Go(func() { h.o.Held(id(p), err.Error()) }) // the runtime does not wait for it
	}
	return err
}

// RemovePodSandbox implements [nri.Handler].
func (h *Hook) RemovePodSandbox(p nri.Pod) {
	h.mu.Lock()
	s := h.sandboxes[p.ID]
	delete(h.sandboxes, p.ID)
	h.mu.Unlock()
	if s == nil {
		return
	}
	h.working.Go(func() {
		ctx, cancel := context.WithTimeout(h.ctx, forgetTime)
		defer cancel()
		err := h.o.Inventory.Remove(h.recordID(p))
		if gone := h.detach(ctx, h.recordID(p)); !errors.Is(gone, agentsock.ErrUnsupported) {
			err = errors.Join(err, gone)
		}
		if err != nil {
			h.o.Log.Warn("a pod's record stays", "namespace", p.Namespace, "pod", p.Name, "error", err.Error())
		}
	})
}

// ownNetNS identifies this process's network namespace, which is the node's.
var ownNetNS = sync.OnceValues(func() (netnsexec.ID, error) {
	id, _, err := netnsOf("/proc/thread-self/ns/net")
	return id, err
})

// placed is a pod whose network is found to be the node's: CRI-O names a namespace for such a pod too, which is the node's own.
func placed(p nri.Pod) nri.Pod {
	if p.Network != nri.NetworkOwn {
		return p
	}
	own, errOwn := ownNetNS()
	if ns, _, err := netnsOf(p.NetNS); err == nil && errOwn == nil && ns == own {
		p.Network, p.NetNS = nri.NetworkHost, ""
	}
	return p
}

// detach tells the agent that a pod is gone. An agent that is away sees it when it comes.
func (h *Hook) detach(ctx context.Context, id attachment.ID) error {
	if h.o.Detach != nil {
		return h.o.Detach(ctx, id)
	}
	if err := (agentsock.Client{Path: filepath.Join(h.o.Config().RunDir, agentsock.Name)}).Detach(ctx, id); err == nil || errors.Is(err, agentsock.ErrUnsupported) {
		return err
	}
	return nil
}

func id(p nri.Pod) status.ID { return status.ID{Namespace: p.Namespace, Name: p.Name, UID: p.UID} }

func (h *Hook) recordID(p nri.Pod) attachment.ID {
	return attachment.ID{Network: h.network(), ContainerID: p.ID, IfName: ifName}
}

// errUndecided: an attempt goes on, and the runtime is not kept waiting for it.
var errUndecided = errors.New("the pod is being captured, or it is not known yet whether it must be; the container is made once that is done")

// within is settle within that time and what is spare.
func (h *Hook) within(ctx context.Context, p nri.Pod, share time.Duration) error {
	began := time.Now()
	h.mu.Lock()
	if h.spareAt.IsZero() {
		h.spare = maxWait
	} else {
		h.spare = min(maxWait, h.spare+began.Sub(h.spareAt)/spareShare)
	}
	patience := min(share, maxWait, shortWait+h.spare)
	taken := max(0, patience-shortWait)
	h.spare, h.spareAt = h.spare-taken, began
	h.mu.Unlock()
	err := h.settle(ctx, p, patience)
	h.mu.Lock()
	h.spare = min(maxWait, h.spare+max(0, taken-max(0, time.Since(began)-shortWait)))
	h.mu.Unlock()
	return err
}

// settle returns nil once the pod is captured, or is not to be. It waits as long as that for an attempt, which goes on by itself.
func (h *Hook) settle(ctx context.Context, p nri.Pod, patience time.Duration) error {
	if p = placed(p); p.Network == nri.NetworkHost {
		return nil
	}
	h.mu.Lock()
	s := h.sandboxes[p.ID]
	if s == nil {
		s = &sandbox{at: time.Now()}
		h.sandboxes[p.ID] = s
	}
	s.pod = p
	if s.settled {
		h.mu.Unlock()
		return nil
	}
	if s.trying == nil {
		s.trying = make(chan struct{})
		h.working.Go(func() { h.try(s, p) })
	}
	trying := s.trying
	h.mu.Unlock()
	ended := time.NewTimer(patience)
	defer ended.Stop()
	select {
	case <-trying:
		h.mu.Lock()
		defer h.mu.Unlock()
		return s.err
	case <-ended.C:
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(s.err, errUndecided)
}

// try is one attempt.
func (h *Hook) try(s *sandbox, p nri.Pod) {
	ctx, cancel := context.WithTimeout(h.ctx, h.attempt)
	defer cancel()
	var err error
	selected, known := h.known(p)
	if !known {
		selected, err = h.capture(ctx, p)
	}
	if err == nil && selected && h.sandboxed(p) {
		err = fmt.Errorf("the container runtime runs it by its handler %q, which gives it a kernel or a network stack of its own, whose packets no rule sees: "+
			"give it a runtime class of another handler, or take it out of the mesh; allowSandboxed lets it start", p.Handler)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.settled, s.err = err == nil, err
	close(s.trying)
	s.trying = nil
}

// sandboxed reports whether the pod's handler is by its name one of the classes that are not let go; none: the default ones.
func (h *Hook) sandboxed(p nri.Pod) bool {
	if p.Handler == "" { // as nearly always: the settings are not read for it
		return false
	}
	c := h.o.Config()
	classes := c.SandboxedClasses
	if len(classes) == 0 {
		classes = dialect.SandboxedClasses
	}
	return !c.AllowSandboxed && runtimeclass.Is(p.Handler, classes)
}

// capture is add, in its turn if the pod is large.
func (h *Hook) capture(ctx context.Context, p nri.Pod) (selected bool, err error) {
	size := 0
	for key, value := range p.Annotations {
		size += len(key) + len(value)
	}
	if size >= largePod {
		select {
		case h.large <- struct{}{}:
			defer func() { <-h.large }()
		case <-ctx.Done():
			return false, errUndecided
		}
	}
	return h.add(ctx, p)
}

// known reports whether the plugin's ADD, or an attempt before, has dealt with the pod, and found it to be of a mesh: by a record of this sandbox
// and this very namespace. Where the agent does not see the namespace, its path tells.
func (h *Hook) known(p nri.Pod) (selected, known bool) {
	ns, _, err := netnsOf(p.NetNS)
	known = h.o.Inventory.Recorded(p.ID, func(r attachment.Record) bool {
		if err == nil && !r.NetNS.Is(ns) || err != nil && (p.NetNS == "" || r.NetNS.Path != p.NetNS) {
			return false
		}
		selected = r.Selected
		return true
	})
	return selected, known
}

// agent is this process as the plugin's agent.
type agent struct {
	*Hook
	gates error // why no pod is attached; nil: they are
}

func (a agent) Pod(ctx context.Context, id status.ID) (agentsock.Pod, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), watchTime) // the plugin's own bound is for a process that does not answer
	defer cancel()
	return a.o.Pod(ctx, id)
}

func (a agent) Attach(ctx context.Context, to agentsock.Attachment, ns syscall.Conn) (done agentsock.Attached, err error) {
	if a.gates != nil {
		return done, a.gates
	}
	raw, err := ns.SyscallConn()
	if err != nil {
		return done, err
	}
	fd, failed := -1, error(nil)
	if err := raw.Control(func(from uintptr) { fd, failed = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || failed != nil {
		return done, errors.Join(err, failed)
	}
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	return a.o.Attach(ctx, to, os.NewFile(uintptr(fd), filepath.Base(to.NetNS)))
}

func (a agent) Detach(ctx context.Context, id attachment.ID) error { return a.o.Detach(ctx, id) }

func (agent) Ready(context.Context) error { return nil }

// prefixed are addresses as a result of CNI has them.
func prefixed(addrs []netip.Addr) (all []map[string]any) {
	for _, addr := range addrs {
		all = append(all, map[string]any{"address": netip.PrefixFrom(addr, addr.BitLen()).String(), "interface": 0})
	}
	return all
}
