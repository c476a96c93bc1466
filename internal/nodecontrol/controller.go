package nodecontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
)

const (
	// retryFirst and retryMost are the first and the longest wait after a failure; each doubles the one before.
	retryFirst, retryMost = 250 * time.Millisecond, 30 * time.Second
	// syncedAgain is the interval at which to look whether the pods are known, besides when they change.
	syncedAgain = 20 * time.Millisecond
)

// ErrNotSynced: the node's pods are not known yet, so nothing is done. Check with errors.Is(err, nodecontrol.ErrNotSynced).
var ErrNotSynced = errors.New("the node's pods are not known yet")

// ErrReleasing: all pods are being given back, so none is captured any more. Check with
// errors.Is(err, nodecontrol.ErrReleasing).
var ErrReleasing = errors.New("the node's proxy gives back all pods")

// Controller is the agent's half of the meshes whose proxy is on the node: it hands pods to the proxy, writes their rules,
// takes them back, and mends what goes missing. Make one with [New]. Its methods are safe for concurrent use.
//
// What a pod is like is read from the kernel and from the proxy each time. Nothing that the controller remembers has to
// survive it, so that it can be killed at any moment.
type Controller struct {
	opts   Options
	keeper *keeper.Keeper
	queue  *keeper.Lane
	bounds func(types.UID) (attempt, look time.Duration)
	// deafTime: peers are told when nobody has listened for them for so long. settleTime is that of the constant.
	deafTime, settleTime time.Duration
	metrics              *metrics
	mayTell              func() bool   // whether the events' limit allows one more
	proxies              atomic.Uint64 // changes with each proxy that comes or goes
	started              chan struct{} // closed once all pods are known
	ran                  atomic.Bool

	released atomic.Pointer[mode] // nil: pods are captured

	lacksMoves atomic.Bool // the log was told that the kernel lacks the sysctl of an exchange of proxies

	entries *keeper.Part[*entry]

	mu       sync.Mutex
	attached map[attachment.ID]attachedTo
	changed  chan struct{} // closed and replaced when a state changes
}

// New returns a controller. It does nothing yet. An error says what is wrong with the options.
func New(o Options) (*Controller, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("make controller of the node's proxy: %w", err)
	}
	if o.Probes != nil {
		o.Probes = &exemptions{Probes: o.Probes, last: recent.Value[exempted]{Age: o.VerifyInterval / 10}}
	}
	c := &Controller{
		opts:     o,
		bounds:   o.bounds,
		deafTime: time.Minute, settleTime: settleTime,
		mayTell:  nodeevents.Limit(),
		started:  make(chan struct{}),
		attached: map[attachment.ID]attachedTo{},
		changed:  make(chan struct{}),
	}
	if c.keeper = o.Keeper; c.keeper == nil {
		c.keeper = keeper.New(o.Pods)
	}
	c.entries = keeper.NewPart[*entry](c.keeper, "proxy")
	c.queue = c.keeper.Lane(keeper.Work{
		Workers: o.Workers, First: retryFirst, Most: retryMost, Do: c.process,
		Slow: func(uid types.UID) time.Duration {
			_, look := c.bounds(uid)
			return look
		},
	})
	c.metrics = newMetrics(c)
	return c, nil
}

// Run works until the context ends, and then returns nil. Pods stay as they are. A controller runs once.
//
// It does nothing before all pods of the node are known and the namespaces of those in the mesh were looked for, so that the
// first proxy gets a complete snapshot.
func (c *Controller) Run(ctx context.Context) error {
	if c.ran.Swap(true) {
		return errors.New("the controller of the node's proxy runs or has run already")
	}
	defer c.keeper.Subscribe(c.queue.AddAfter)() // at once, unless it has changed too often of late
	var wg sync.WaitGroup
	defer func() {
		c.queue.ShutDown()
		wg.Wait()
		if err := c.closeAll(); err != nil {
			c.opts.Log.Warn("cannot close network namespaces", "error", truncate.Finding(err.Error()))
		}
	}()
	for !c.opts.Pods.Synced() {
		if !keeper.Sleep(ctx, syncedAgain) {
			return nil
		}
	}
	c.recall()
	c.gather(ctx)
	if ctx.Err() != nil {
		return nil
	}
	close(c.started)
	c.opts.Log.Info("controller of the node's proxy has the node's pods", "pods", len(c.opts.Pods.Pods()))
	c.enqueueAll()
	wg.Go(func() { c.queue.Run(ctx) })
	if c.opts.VerifyInterval >= 0 {
		keeper.Round(ctx, c.opts.VerifyInterval, func() []types.UID { return c.round(ctx) }, c.queue.Add)
	}
	<-ctx.Done()
	return nil
}

// recall reads from the plugin's records which pods were captured, and through which attachments.
func (c *Controller) recall() {
	known := c.opts.Inventory.Look()
	if err := known.Unread[inventory.Record]; err != nil {
		c.opts.Log.Warn("cannot read the plugin's records", "error", truncate.Finding(err.Error()))
	}
	for _, row := range known.Rows {
		r := row.Record
		if r == nil {
			continue
		}
		mesh := c.meshNamed(r.Dialect)
		if !r.Selected || mesh == nil || r.Pod.UID == "" {
			continue
		}
		e := c.entry(types.UID(r.Pod.UID))
		e.mesh, e.ours = mesh, true
		c.mu.Lock()
		e.state.ID = r.Pod
		c.attached[r.ID] = attachedTo{e.uid, idOf(r.NetNS)}
		c.mu.Unlock()
	}
}

// gather looks for the namespaces of all pods that are in the mesh or may have been, for the first snapshot. A noted namespace
// says that rules in it are ours, unless the pod has the proxy of another mesh: an agent before may only have looked into it.
func (c *Controller) gather(ctx context.Context) {
	known := c.opts.Namespaces.Known()
	var wg sync.WaitGroup
	slots := make(chan struct{}, c.opts.Workers)
	all := c.opts.Pods.Pods()
	c.foresee(ctx, all, func(e *entry) bool {
		choice := c.want(ctx, e).Choice
		return choice == machine.In || choice != machine.Gone && slices.Contains(known, e.uid)
	})
	for _, pod := range all {
		if podid.Ended(pod) {
			continue // it is in no snapshot
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			e := c.entry(c.uidOf(pod))
			e.mu.Lock()
			defer e.mu.Unlock()
			w := &work{c: c, e: e, want: c.want(ctx, e)}
			e.ours = e.ours || slices.Contains(known, e.uid) && !w.othersProxy()
			if c.publish(w) {
				begin := time.Now()
				_, look := c.bounds(e.uid)
				finding, cancel := context.WithTimeout(ctx, look)
				defer cancel()
				_ = w.find(finding) // without it, the proxy keeps the pod
				c.queue.Took(e.uid, time.Since(begin))
			}
		})
	}
	wg.Wait()
}

// foresee tells the store of namespaces which of the pods will be asked for.
func (c *Controller) foresee(ctx context.Context, pods []*corev1.Pod, asks func(*entry) bool) {
	var sought []Sought
	for _, pod := range pods {
		if podid.Ended(pod) {
			continue
		}
		e := c.entry(c.uidOf(pod))
		if !e.mu.TryLock() {
			continue // somebody works on it, and nobody waits for one pod here
		}
		if asks(e) {
			addrs := judge.Addrs(pod)
			if len(addrs) == 0 {
				addrs = e.addrs
			}
			sought = append(sought, Sought{UID: e.uid, Addrs: addrs, OwnUsers: podid.OwnUsers(pod)})
		}
		e.mu.Unlock()
	}
	// Pods that take long are left for the lane of such.
	_, look := c.opts.bounds("")
	looking, cancel := context.WithTimeout(ctx, 2*look)
	defer cancel()
	c.opts.Namespaces.Foresee(looking, sought)
}

// enqueueAll has each pod looked at, and each of which something is left. Of pods that have ended only these, and those that say that
// they are in the mesh: a node may have thousands.
func (c *Controller) enqueueAll() {
	left, err := c.left()
	if err != nil {
		c.opts.Log.Warn("cannot read the addresses of probes", "error", truncate.Finding(err.Error()))
	}
	for _, pod := range c.opts.Pods.Pods() {
		if err != nil || !podid.Ended(pod) || c.told(pod) {
			left = append(left, c.uidOf(pod))
		}
	}
	for _, uid := range slices.AppendSeq(left, maps.Keys(c.entries.All())) {
		c.queue.Add(uid)
	}
}

// left returns the pods whose namespaces are noted, and those that are in the set of probes.
func (c *Controller) left() ([]types.UID, error) {
	noted := slices.Clone(c.opts.Namespaces.Known())
	if c.opts.Probes == nil {
		return noted, nil
	}
	entries, err := c.opts.Probes.Entries()
	return slices.AppendSeq(noted, maps.Values(entries)), err
}

// ProxyChanged says that a proxy has come or gone. Each pod is handed over again, unless the Proxy is [nodeproxy.Accepting] and says that this is
// not needed.
func (c *Controller) ProxyChanged() {
	c.proxies.Add(1)
	select {
	case <-c.started:
		for _, uid := range c.uids() {
			c.queue.Add(uid)
		}
	default: // all are looked at when it starts
	}
}

// round returns the pods that are compared with the kernel in the round that begins. What nobody has an entry of, such as an address in the set of
// probes, is looked for too, and what ended long ago is forgotten.
func (c *Controller) round(ctx context.Context) []types.UID {
	c.lookForStrays()
	c.forgetEnded()
	c.foresee(ctx, c.opts.Pods.Pods(), func(e *entry) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return e.shared && !e.given
	})
	return c.uids()
}

// lookForStrays has those looked at of which something is left and nobody knows.
func (c *Controller) lookForStrays() {
	left, _ := c.left() // what of it can be read
	for _, uid := range left {
		if c.pod(uid) == nil {
			c.queue.Add(uid)
		}
	}
}

// uids returns those of all pods that are looked at round after round.
func (c *Controller) uids() (uids []types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, e := range c.entries.All() {
		if !e.done {
			uids = append(uids, uid)
		}
	}
	return uids
}

// Pods returns what is known of each pod of the node, ordered by namespace and name.
func (c *Controller) Pods() []status.Pod {
	c.mu.Lock()
	var states []status.Pod
	for _, e := range c.entries.All() {
		if e.state.State != "" {
			states = append(states, e.state)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(states, func(a, b status.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	return states
}

// Ready returns nil if pods can be captured now: otherwise [ErrNotSynced], [ErrReleasing], or the proxy's own reason. Pods that
// are captured stay so meanwhile.
func (c *Controller) Ready() error {
	select {
	case <-c.started:
	default:
		return ErrNotSynced
	}
	if m := c.mode(); m.on {
		return fmt.Errorf("%w%s", ErrReleasing, m.toWhom())
	}
	if err := c.opts.Proxy.Ready(); err != nil {
		return fmt.Errorf("the node's proxy takes no pods: %w", err)
	}
	return nil
}

// News lists faults that need attention though the agent works: that the pods were released, and of each kind of fault how many pods have it.
func (c *Controller) News() (all []status.News) {
	add := func(kind status.Kind, where, text string) {
		n := news.New(kind, news.Ambient, text)
		n.Where = where
		all = append(all, n)
	}
	if m := c.mode(); m.on {
		add(status.KindFinding, "released", fmt.Sprintf("the node's pods were released%s: none is captured until that is undone", m.toWhom()))
	}
	counts := map[status.State]int{}
	first := map[status.State]status.Pod{}
	for _, p := range c.Pods() {
		if counts[p.State]++; counts[p.State] == 1 {
			first[p.State] = p
		}
	}
	for _, k := range []struct {
		state status.State
		words string
	}{
		{status.StateDrifted, "have lost something of their redirection"},
		{status.StateFailed, "cannot be captured"},
		{status.StateWaiting, "wait to be captured"},
		{status.StateUnknown, "may be captured or not, which cannot be told"},
	} {
		if n := counts[k.state]; n > 0 {
			p := first[k.state]
			add(status.KindPod, string(k.state), fmt.Sprintf("%d pods %s, such as %s/%s (%s: %s)", n, k.words, p.Namespace, p.Name, p.Reason, p.Detail))
		}
	}
	return all
}

func (c *Controller) log(pod status.ID) *slog.Logger {
	return c.opts.Log.With("namespace", pod.Namespace, "pod", pod.Name, "uid", pod.UID)
}
