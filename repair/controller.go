package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/meshcni/meshcni/internal/budget"
	"github.com/meshcni/meshcni/repair/internal/kube"
)

const (
	// resync is how often each pod is looked at even if nothing has changed.
	resync = 10 * time.Minute
	// retryFirst and retryMost are the first and the longest wait after failures.
	retryFirst, retryMost = time.Second, 2 * time.Minute
	// workers is how many pods are dealt with at a time, so that one slow answer does not hold up the rest. The budgets
	// make more of them pointless.
	workers = 2
	// attemptTimeout bounds one attempt.
	attemptTimeout = 30 * time.Second
	// sayAgain is how often a lasting outage is logged.
	sayAgain = 30 * time.Minute
	// askAgain is how often the server is asked for missing permissions, and all pods are looked at for their rules.
	askAgain = 10 * time.Second
	// tellBurst and tellRate limit the events about pods that are not captured: so many at once, and so many a second. A node
	// has some hundred pods.
	tellBurst, tellRate = 50, 1
)

// Controller watches the pods of one node and acts on the broken ones. Create one with [New]. Its methods are safe for
// concurrent use.
type Controller struct {
	opts          Options
	cluster       Cluster
	redirector    Redirector
	namespace     func(context.Context, *corev1.Pod) (*corev1.Namespace, error) // the pod's, if it decides too
	events        record.EventRecorder
	record        func() (events record.EventRecorder, stop func()) // starts events; nil if the options have a recorder
	permissions   func(context.Context) ([]kube.Permission, error)  // returns the missing ones; nil if nobody knows
	budget        *budget.Node
	clusterBudget *leaseBudget // nil: none
	breaker       breaker
	lineage       lineage
	tracks        tracks
	reports       reports
	tracer        *tracer
	mayTell       func() bool // whether the events' limit allows one more
	metrics       *metrics
	source        Pods
	own           *watched // the source, if nobody else watches the pods
	selector      labels.Selector
	queue         workqueue.TypedRateLimitingInterface[types.NamespacedName]

	detecting sync.Mutex

	mu         sync.Mutex
	started    bool
	keys       map[types.UID]types.NamespacedName // of the pods that the source has told of
	denied     error                              // a permission is missing
	watchErr   error                              // why the pods could not be listed or watched
	sourceErr  string                             // what the source last said was wrong
	watchSaid  time.Time
	unreadable string // what was said of traces that cannot be read
}

// newController makes a controller from valid options with defaults filled in.
func newController(o Options) (*Controller, error) {
	c := &Controller{
		opts: o, cluster: o.Cluster, redirector: o.Redirector, events: o.Events,
		budget:  budget.ForNode(o.NodeBudget),
		breaker: breaker{Breaker: budget.Breaker{MaxShare: o.MaxBrokenShare, MinBroken: o.MinBroken, TrialInterval: o.TrialInterval}, installed: o.Installed},
		tracks:  tracks{byUID: map[types.UID]track{}},
		metrics: newMetrics(o.Metrics, o.Action),
		tracer:  newTracer("", o.Records),
		mayTell: flowcontrol.NewTokenBucketRateLimiter(tellRate, tellBurst).TryAccept,
		keys:    map[types.UID]types.NamespacedName{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryMost)),
	}
	inPlace := &InPlace{
		Dialects: o.Dialects, ProcRoot: o.ProcRoot, HostRoot: o.HostRoot, Backend: o.Backend, Plan: o.Plan, Records: o.Records, Log: o.Log,
	}
	if c.cluster == nil {
		api, err := kube.New(o.Config, o.Node)
		if err != nil {
			return nil, err
		}
		c.useAPI(api)
	}
	if o.Detect != nil {
		c.tracer = newTracer(o.Detect.CacheDir, o.Records)
		inPlace.Network = c.network
	}
	if n, ok := c.cluster.(namespaceReader); ok {
		inPlace.Namespace = n.Namespace
	}
	c.namespace = inPlace.namespace
	if c.redirector == nil {
		c.redirector = inPlace
	}
	if c.events == nil && c.record == nil {
		c.events = &record.FakeRecorder{} // discards them
	}
	var err error
	if c.selector, err = labels.Parse(o.labelSelector()); err != nil {
		return nil, fmt.Errorf("select pods: %w", err)
	}
	if c.source = o.Pods; c.source == nil {
		c.own, err = watch(c.cluster.Pods(o.Node, o.labelSelector()), c.watchFailed)
		c.source = c.own
	}
	return c, err
}

// useAPI makes the controller work with an API server.
func (c *Controller) useAPI(api *kube.Client) {
	o := c.opts
	c.cluster = api
	wanted := o.uses().Permissions()
	c.permissions = func(ctx context.Context) ([]kube.Permission, error) { return api.Missing(ctx, wanted) }
	if o.Events == nil {
		c.record = func() (record.EventRecorder, func()) { return api.Recorder(o.Node, func(err error) { c.refused(err) }) }
	}
	if o.limitsCluster() {
		c.clusterBudget = &leaseBudget{leases: api, namespace: o.BudgetNamespace, holder: o.Node, Budget: o.ClusterBudget}
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(api)
	}
}

// Run works until the context ends, and then returns nil. A controller runs once.
func (c *Controller) Run(ctx context.Context) error {
	c.mu.Lock()
	again := c.started
	c.started = true
	c.mu.Unlock()
	if again {
		return errors.New("the repair controller runs or has run already")
	}
	defer c.source.Subscribe(c.changed)()
	if c.record != nil {
		events, stop := c.record()
		defer stop()
		c.events = events
	}
	c.askPermissions(ctx)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.queue.ShutDown()
	if c.own != nil {
		wg.Go(func() { c.own.informer.RunWithContext(ctx) })
	}
	wg.Go(func() { c.tick(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), c.source.Synced) {
		return nil // the context has ended
	}
	c.enqueueAll()
	c.sweep(ctx)
	c.count()
	c.opts.Log.Info("repair controller has the node's pods", "node", c.opts.Node,
		"pods", len(c.pods()), "action", string(c.opts.Action))
	for range workers {
		wg.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	if c.opts.VerifyInterval > 0 {
		wg.Go(func() { c.verifyAll(ctx) })
	}
	for sleep(ctx, resync) {
		c.enqueueAll()
	}
	return nil
}

// tick does the regular work.
func (c *Controller) tick(ctx context.Context) {
	for sleep(ctx, askAgain) {
		c.askSource()
		if c.suspended() > 0 || !c.source.Synced() {
			c.askPermissions(ctx)
		}
		if c.source.Synced() {
			c.count()
			c.tracks.keep(c.pods())
			c.sweep(ctx)
			c.retryReports()
		}
		c.metrics.pods.WithLabelValues("drifted").Set(float64(c.tracks.countDrifted()))
		c.metrics.setReady(c.Ready())
	}
}

func key(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func (c *Controller) enqueue(pod *corev1.Pod) { c.queue.Add(key(pod)) }

func (c *Controller) enqueueAll() {
	for _, pod := range c.pods() {
		c.see(pod)
		c.enqueue(pod)
	}
}

// see notes when a pod was first seen.
func (c *Controller) see(pod *corev1.Pod) {
	c.tracks.change(pod.UID, func(t *track) { t.seen = cmp.Or(t.seen, time.Now()) })
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

// count returns how many of the node's pods check their redirection, and how many of those are broken.
func (c *Controller) count() (candidates, broken int) {
	all := c.pods()
	for _, pod := range all {
		f := c.diagnose(pod)
		if f.Broken && c.tracks.get(pod.UID).excluded {
			continue
		}
		if f.Candidate {
			candidates++
		}
		if f.Broken {
			broken++
		}
	}
	c.metrics.pods.WithLabelValues("known").Set(float64(len(all)))
	c.metrics.pods.WithLabelValues("candidate").Set(float64(candidates))
	c.metrics.pods.WithLabelValues("broken").Set(float64(broken))
	c.metrics.setReady(c.Ready())
	return candidates, broken
}

// Ready returns nil while the controller works, and otherwise why it does not: a permission is missing, or the node's
// pods are not listed yet. A broken watch does not count: it resumes, and the known pods remain valid.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.denied != nil:
		return fmt.Errorf("repair: %w", c.denied)
	case c.source.Synced():
		return nil
	case c.watchErr != nil:
		return fmt.Errorf("repair: list the node's pods: %w", c.watchErr)
	}
	return errors.New("repair: the node's pods are not listed yet")
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
