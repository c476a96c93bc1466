package taintcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/internal/readytaint"
	"github.com/meshcni/meshcni/internal/taintmetrics"
	"github.com/meshcni/meshcni/internal/truncate"
	"github.com/meshcni/meshcni/internal/unheard"
)

// The times of the Lease: those of Kubernetes' own controllers (RecommendedDefaultLeaderElectionConfiguration of
// k8s.io/component-base/config/v1alpha1).
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// The time until something that failed is tried again, which doubles.
const firstRetry, lastRetry = time.Second, 30 * time.Second

// controller works while it has the Lease.
type controller struct {
	*api
	log     *slog.Logger
	events  record.EventRecorder
	metrics *taintmetrics.Metrics
	synced  atomic.Bool
	leads   atomic.Bool
	watches unheard.Watches
}

// codeOutdated is the notice that the API server has told this controller nothing for long.
const codeOutdated = "nodes-outdated"

// outdated is that notice. One that only stands by watches nothing.
func (c *controller) outdated() unheard.Notice {
	return unheard.Notice{Code: codeOutdated, Why: func() error {
		return c.watches.Err(cmp.Or(c.unheard, unheard.For), "nodes or agents", "taints may stay as they are")
	}}
}

// tellOutdated tells the log and the agents' DaemonSet.
func (c *controller) tellOutdated(says string) {
	c.log.Warn(says, "code", codeOutdated)
	c.events.Event(reference("DaemonSet", c.namespace, c.daemonSet, ""), corev1.EventTypeWarning, "AgentTaintOutdated", truncate.Text(says, truncate.MaxFinding))
}

func newController(config *rest.Config, s *settings, log *slog.Logger, events record.EventRecorder) (*controller, error) {
	a, err := newAPI(config, s)
	if err != nil {
		return nil, err
	}
	return &controller{api: a, log: log, events: events, metrics: taintmetrics.New(s.product)}, nil
}

// ready: one that only stands by is ready for that.
func (c *controller) ready() error {
	if c.leads.Load() && !c.synced.Load() {
		return errors.New("the nodes and agents of the cluster are not read yet")
	}
	return nil
}

// elect works whenever this controller has the Lease, until ctx ends. It then gives the Lease back, once it has stopped to work. An
// error: it has lost the Lease. Another one may have it by then, so the process should end.
func (c *controller) elect(ctx context.Context) error {
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var working sync.WaitGroup
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.lease}, Client: c.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.identity},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true, Name: c.lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				working.Add(1)
				defer working.Done()
				leading, stop := context.WithCancel(leading)
				defer context.AfterFunc(ctx, stop)()
				c.lead(leading)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare the election: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		working.Wait()
		stop()
	})()
	elector.Run(electing)
	working.Wait()
	if ctx.Err() != nil {
		return nil // the caller ended it
	}
	return fmt.Errorf("lost the Lease %s/%s", c.namespace, c.lease)
}

// lead works until ctx ends.
func (c *controller) lead(ctx context.Context) {
	c.log.Info("this controller is the one that works", "lease", c.lease, "identity", c.identity)
	c.leads.Store(true)
	c.metrics.Leader.Set(1)
	defer c.metrics.Leader.Set(0)
	poke := make(chan struct{}, 1)
	w := &work{controller: c, own: map[types.UID]*corev1.Node{}, poke: poke}
	nodes, agents, sets, err := c.informers(w.changed, c.watches.Note)
	if err != nil {
		c.log.Error("cannot watch the cluster", "error", err)
		return
	}
	w.nodes, w.agents, w.sets = nodes.GetStore(), agents.GetStore(), sets.GetStore()
	var running sync.WaitGroup
	defer running.Wait()
	var all []cache.InformerSynced
	for _, i := range []cache.SharedInformer{nodes, agents, sets} {
		running.Go(func() { i.Run(ctx.Done()) })
		all = append(all, i.HasSynced)
	}
	running.Go(func() { c.outdated().Tell(ctx, c.tellOutdated) })
	if !cache.WaitForCacheSync(ctx.Done(), all...) {
		return
	}
	c.synced.Store(true)
	for timer := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-poke:
		case <-timer.C:
		}
		if next := w.once(ctx); next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
}

// work is the state of one term of leadership.
type work struct {
	*controller
	nodes, agents, sets cache.Store
	poke                chan struct{}

	state readytaint.State
	own   map[types.UID]*corev1.Node // as our own changes have left them, until the watch tells the same
	retry time.Duration
	held  int
}

// changed wakes the loop. What comes while it works is seen in its next round.
func (w *work) changed() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// once observes, decides and acts, and returns how long until it should do so again though nothing has changed. Zero: it need not.
func (w *work) once(ctx context.Context) (next time.Duration) {
	set := w.daemonSet()
	if set == nil {
		// Without agents by design the clocks stand still, and nothing is held against a node.
		w.state = nil
		w.metrics.Observe(nil)
		w.breaker(nil, nil)
		return 0
	}
	nodes, byName := w.observed(set)
	state, plan := w.Next(w.state, nodes, time.Now())
	w.state = state
	w.metrics.Observe(plan.Nodes)
	w.breaker(set, plan.Held)
	next = plan.Next
	failed := false
	for _, a := range plan.Actions {
		if ctx.Err() != nil {
			return 0
		}
		switch err := w.do(ctx, set, byName[a.Node], a); {
		case err == nil, apierrors.IsNotFound(err), ctx.Err() != nil: // or the node is gone
		default:
			failed = true
			w.metrics.Failures.Inc()
			if w.retry == 0 || !apierrors.IsConflict(err) {
				w.log.Warn("cannot change the taints of a node; it is tried again", "node", a.Node, "change", a.Change, "error", err)
			}
		}
	}
	if !failed {
		w.retry = 0
		return next
	}
	w.retry = min(max(firstRetry, 2*w.retry), lastRetry)
	if next == 0 || w.retry < next {
		next = w.retry
	}
	return next
}

// daemonSet is the agents', unless it is gone or about to go.
func (w *work) daemonSet() *appsv1.DaemonSet {
	for _, o := range w.sets.List() {
		if set := o.(*appsv1.DaemonSet); set.DeletionTimestamp == nil {
			return set
		}
	}
	return nil
}

// observed are the nodes with their agents.
func (w *work) observed(set *appsv1.DaemonSet) (nodes []readytaint.Node, byName map[string]*corev1.Node) {
	agents := map[string][]*corev1.Pod{}
	for _, o := range w.agents.List() {
		pod := o.(*corev1.Pod)
		agents[pod.Spec.NodeName] = append(agents[pod.Spec.NodeName], pod)
	}
	own := map[types.UID]*corev1.Node{}
	byName = map[string]*corev1.Node{}
	for _, o := range w.nodes.List() {
		node := o.(*corev1.Node)
		if mine := w.own[node.UID]; mine != nil && older(node, mine) {
			own[node.UID], node = mine, mine
		}
		byName[node.Name] = node
		nodes = append(nodes, w.observe(node, agents[node.Name], set))
	}
	w.own = own
	return nodes, byName
}

// older reports whether a is an earlier state of the same object than b.
func older(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// do changes a node. What the watches tell may be late, above all after the API server was away: before a taint is put back, the
// API server is asked whether the agent is still gone. A removal needs no such care.
func (w *work) do(ctx context.Context, set *appsv1.DaemonSet, node *corev1.Node, a readytaint.Action) error {
	if a.Change == readytaint.Add {
		now, pods, err := w.fresh(ctx, a.Node)
		if err != nil {
			return err
		}
		if now.UID != node.UID || !w.StillDue(w.state, w.observe(now, pods, set), time.Now()) {
			return nil // the watches will tell
		}
		node = now
	}
	changed, err := w.patch(ctx, node, a.Change)
	if apierrors.IsConflict(err) { // another program changes it, too
		now, _, errFresh := w.fresh(ctx, a.Node)
		if errFresh != nil {
			return errFresh
		}
		w.own[now.UID] = now
		w.changed()
		return nil
	}
	if err != nil {
		return err
	}
	w.own[changed.UID] = changed
	w.tell(a)
	return nil
}

// tell reports the changes.
func (w *work) tell(a readytaint.Action) {
	w.metrics.Changes.WithLabelValues(string(a.Change), string(a.Why)).Inc()
	w.log.Info("taint changed", "node", a.Node, "change", a.Change, "reason", a.Why, "key", w.key)
	if a.Change == readytaint.Add {
		w.events.Eventf(reference("Node", "", a.Node, types.UID(a.Node)), corev1.EventTypeWarning, "AgentTaintAdded", "new pods are kept off by the taint %s: %s", w.key, by(a))
		return
	}
	w.events.Eventf(reference("Node", "", a.Node, types.UID(a.Node)), corev1.EventTypeNormal, "AgentTaintRemoved", "the taint %s is removed: %s", w.key, by(a))
}

// breaker reports that the share is used up, and the end of that.
func (w *work) breaker(set *appsv1.DaemonSet, held []string) {
	switch {
	case len(held) > 0 && w.held == 0:
		w.metrics.Breaker.Set(1)
		w.log.Error("too many nodes have no agent that is ready: no further taint is put back", "held", len(held), "first", held[0], "max-share", w.MaxShare)
		w.events.Eventf(reference("DaemonSet", set.Namespace, set.Name, set.UID), corev1.EventTypeWarning, "AgentTaintHeld",
			"%d nodes have no agent that is ready and are not tainted, since a share of %v of all nodes is already; the first is %s", len(held), w.MaxShare, held[0])
		w.events.Eventf(reference("Node", "", held[0], types.UID(held[0])), corev1.EventTypeWarning, "AgentTaintHeld",
			"the agent is gone, and the node is not tainted, since a share of %v of all nodes is already", w.MaxShare)
	case len(held) == 0 && w.held > 0:
		w.metrics.Breaker.Set(0)
		w.log.Info("taints are put back again where agents are gone")
	}
	w.held = len(held)
}

// reference names what an event is about. Those of the kubelet about its node have the node's name as UID too; kubectl describe
// looks for both.
func reference(kind, namespace, name string, uid types.UID) *corev1.ObjectReference {
	version := "v1"
	if kind == "DaemonSet" {
		version = "apps/v1"
	}
	return &corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: namespace, Name: name, UID: uid}
}
