package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

// Config is what a [Controller] is made of.
type Config struct {
	// Node is the node's name. Required.
	Node string
	// Action is what to do. The zero value is [ActionNone]: report only.
	Action Action
	// Criteria say what is broken. Required, but for Policy alone where the Action
	// is none and there is a VerifyInterval.
	Criteria Criteria
	// Source lists and watches the node's pods, and no others. Required.
	Source cache.ListerWatcher
	// Cluster is where actions go. Required.
	Cluster Cluster
	// Mender programs running pods; required for [ActionRepair] and for
	// VerifyInterval.
	Mender Mender
	// NodeBudget bounds all actions on this node. The zero value is [DefaultNodeBudget].
	NodeBudget Budget
	// ClusterBudget, if not nil, bounds deletions, which take something away from
	// the whole cluster. A [*ClusterBudget] does that for all nodes.
	ClusterBudget Taker
	// Breaker holds back deletions. nil is the zero [Breaker].
	Breaker *Breaker
	// Force deletes pods whose eviction a disruption budget forbids.
	Force bool
	// SpareUnmanaged leaves pods alone that have no controlling owner, since
	// nothing would make them anew.
	SpareUnmanaged bool
	// VerifyInterval is how long one round takes in which each running captured
	// pod's rules are verified once. 0: they are not.
	VerifyInterval time.Duration
	// Permissions returns which permissions are missing; [*Kube.Missing] knows.
	// nil: they are noticed when they are needed.
	Permissions func(context.Context) ([]Permission, error)
	// Events gets what happens to pods. nil: no events.
	Events record.EventRecorder
	// Metrics gets the metrics. nil: they are not exported.
	Metrics prometheus.Registerer
	// Log gets one record for each outcome. nil: none.
	Log *slog.Logger
}

// DefaultNodeBudget is the pace on one node.
var DefaultNodeBudget = Budget{PerMinute: 30, Burst: 10}

// Controller watches one node's pods and acts on the broken ones. Make one with
// [New]. Ready may be called at any time.
type Controller struct {
	Config
	metrics  *metrics
	budget   *NodeBudget
	informer cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
	lineage  lineage
	tracks   tracks

	mu       sync.Mutex
	started  bool
	denied   error // the permission that is missing
	watchErr error
	// watchSaid is when it was last in the log.
	watchSaid time.Time
	hasSynced func() bool
}

// New makes a controller. Errors: an incomplete Config.
func New(c Config) (*Controller, error) {
	if c.NodeBudget == (Budget{}) {
		c.NodeBudget = DefaultNodeBudget
	}
	if c.Breaker == nil {
		c.Breaker = &Breaker{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewJSONHandler(io.Discard, nil))
	}
	if c.Events == nil {
		c.Events = &record.FakeRecorder{}
	}
	if c.Action == "" {
		c.Action = ActionNone
	}
	_, errAction := ParseAction(string(c.Action))
	err := errors.Join(errAction, c.NodeBudget.Validate())
	// A mesh without a check can have its rules verified all the same.
	if c.Action != ActionNone || c.VerifyInterval == 0 {
		err = errors.Join(err, c.Criteria.Validate())
	}
	switch {
	case err != nil:
	case c.Node == "":
		err = errors.New("the node's name is not set")
	case c.Source == nil || c.Cluster == nil:
		err = errors.New("no API server to work with")
	case c.Mender == nil && (c.Action == ActionRepair || c.VerifyInterval > 0):
		err = errors.New("nothing to program running pods with")
	}
	if err != nil {
		return nil, fmt.Errorf("make repair controller: %w", err)
	}
	if c.Action != ActionLabel {
		c.Criteria.HandledLabel = "" // a label left by another mode handles nothing in this one
	}
	ctl := &Controller{
		Config: c, metrics: newMetrics(c.Metrics, c.Action), budget: NewNodeBudget(c.NodeBudget),
		tracks:    tracks{byUID: map[types.UID]*track{}},
		hasSynced: func() bool { return false },
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryMost)),
	}
	ctl.informer = cache.NewSharedIndexInformer(c.Source, &corev1.Pod{}, resync, cache.Indexers{})
	if err := errors.Join(
		ctl.informer.SetTransform(trim),
		ctl.informer.SetWatchErrorHandlerWithContext(ctl.watchFailed),
	); err != nil {
		return nil, fmt.Errorf("make repair controller: %w", err)
	}
	return ctl, nil
}

const (
	// resync is how often each pod is looked at although nothing has changed.
	resync = 10 * time.Minute
	// retryFirst and retryMost are the waits after failures.
	retryFirst, retryMost = time.Second, 2 * time.Minute
	// workers is how many pods are dealt with at once: a slow answer for one must
	// not hold up the rest, and budgets make more of them pointless.
	workers = 2
	// attemptTimeout bounds one attempt.
	attemptTimeout = 30 * time.Second
	// sayAgain is how often an outage that lasts is in the log.
	sayAgain = 30 * time.Minute
	// askAgain is how often the server is asked for a missing permission.
	askAgain = 10 * time.Second
)

// Run works until the context ends, which is no error. A Controller runs once.
func (c *Controller) Run(ctx context.Context) error {
	c.mu.Lock()
	if c.started {
		c.mu.Unlock()
		return errors.New("the repair controller runs or has run already")
	}
	c.started = true
	c.mu.Unlock()

	registration, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.add,
		UpdateFunc: func(_, obj any) { c.enqueue(obj) },
		DeleteFunc: c.forget,
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	c.mu.Lock()
	c.hasSynced = registration.HasSynced
	c.mu.Unlock()
	c.askPermissions(ctx)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.queue.ShutDown()
	wg.Go(func() { c.informer.RunWithContext(ctx) })
	wg.Go(func() { c.tick(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // the context has ended
	}
	c.count()
	c.Log.Info("repair controller has the node's pods", "node", c.Node, "pods", len(c.informer.GetStore().ListKeys()), "action", string(c.Action))
	for range workers {
		wg.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	if c.VerifyInterval > 0 {
		wg.Go(func() { c.verifyAll(ctx) })
	}
	<-ctx.Done()
	return nil
}

// tick does what is due now and then.
func (c *Controller) tick(ctx context.Context) {
	for sleep(ctx, askAgain) {
		if c.suspended() > 0 || !c.synced() {
			c.askPermissions(ctx)
		}
		if c.synced() {
			c.count()
			c.tracks.prune(c.informer.GetStore().List())
		}
		c.metrics.pods.WithLabelValues("drifted").Set(float64(c.tracks.countDrifted()))
		c.metrics.setReady(c.Ready())
	}
}

// add notes when a pod was first seen.
func (c *Controller) add(obj any) {
	if pod, ok := obj.(*corev1.Pod); ok {
		c.tracks.change(pod.UID, func(t *track) { t.seen = or(t.seen, time.Now()) })
	}
	c.enqueue(obj)
}

func (c *Controller) enqueue(obj any) {
	if pod, ok := obj.(*corev1.Pod); ok {
		c.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

// forget drops what is known of a pod that is away.
func (c *Controller) forget(obj any) {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = t.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		c.tracks.drop(pod.UID)
		c.queue.Forget(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

func (c *Controller) next(ctx context.Context) bool {
	key, stop := c.queue.Get()
	if stop {
		return false
	}
	defer c.queue.Done(key)
	if ctx.Err() != nil {
		return true // drain
	}
	wait, retry := c.process(ctx, key)
	switch {
	case retry:
		c.queue.AddRateLimited(key)
	case wait > 0:
		c.queue.AddAfter(key, wait)
	default:
		c.queue.Forget(key)
	}
	return true
}

// pod returns the pod of the informer, nil when it has none.
func (c *Controller) pod(key types.NamespacedName) *corev1.Pod {
	obj, ok, err := c.informer.GetStore().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	pod, _ := obj.(*corev1.Pod)
	return pod
}

// count takes the census of the node's pods.
func (c *Controller) count() Census {
	var census Census
	all := c.informer.GetStore().List()
	for _, obj := range all {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			continue
		}
		f := Diagnose(pod, c.Criteria)
		if f.Candidate {
			census.Candidates++
		}
		if f.Broken {
			census.Broken++
		}
	}
	c.metrics.pods.WithLabelValues("known").Set(float64(len(all)))
	c.metrics.pods.WithLabelValues("candidate").Set(float64(census.Candidates))
	c.metrics.pods.WithLabelValues("broken").Set(float64(census.Broken))
	c.metrics.setReady(c.Ready())
	return census
}

func (c *Controller) synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hasSynced()
}

// Ready is nil while the controller works, else why it does not.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.denied != nil:
		return fmt.Errorf("repair: %w", c.denied)
	case c.hasSynced():
		// A watch that breaks is taken up again; the pods known are still true.
		return nil
	case c.watchErr != nil:
		return fmt.Errorf("repair: list the node's pods: %w", c.watchErr)
	}
	return errors.New("repair: the node's pods are not listed yet")
}

// watchFailed is told each time that the list or watch of pods breaks.
func (c *Controller) watchFailed(_ context.Context, _ *cache.Reflector, err error) {
	kind := "other"
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		kind = "expired"
	case apierrors.IsForbidden(err):
		kind = "forbidden"
		c.refused(err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		kind = "closed"
	}
	c.metrics.watch.WithLabelValues(kind).Inc()
	if kind == "other" {
		c.unreachable(err)
	}
}
