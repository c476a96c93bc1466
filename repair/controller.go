package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/internal/api/unheard"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/news/reporter"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/status"
)

const (
	// resync is the interval at which each pod is looked at even if nothing has changed.
	resync = 10 * time.Minute
	// retryFirst and retryMost are the first and the longest wait after failures.
	retryFirst, retryMost = time.Second, 2 * time.Minute
	// workers bounds the pods that are dealt with at a time, most of which wait for the API server. One more sees to the pods that are slow themselves.
	workers = 16
	// mostLooks bounds the pods' namespaces that are looked into at a time, without that of a slow pod: each takes a processor.
	mostLooks = 2
	// attemptTimeout bounds one attempt.
	attemptTimeout = 30 * time.Second
	// askAgain is the interval at which the server is asked for missing permissions, and all pods are looked at for their rules.
	askAgain = 10 * time.Second
)

// Controller watches the pods of one node and acts on the broken ones. Create one with [New]. Its methods are safe for
// concurrent use.
type Controller struct {
	opts          Options
	cluster       cluster
	redirector    redirector
	events        nodeevents.Recorder
	record        func() (events nodeevents.Recorder, stop func()) // starts events; nil if the options have a recorder
	permissions   func(context.Context) ([]api.Right, error)       // returns the missing ones; nil if nobody knows
	holds         holds
	lineage       lineage
	tracks        *keeper.Part[track]
	inventory     *inventory.Inventory
	mayTell       func() bool // whether the events' limit allows one more
	mayTellBypass func() bool // the same of bypasses, which must not use up the other limit
	metrics       *metrics
	reporter      *reporter.Reporter
	source        *nodepods.Watch
	selector      labels.Selector
	keeper        *keeper.Keeper
	queue         *keeper.Lane
	looks         chan struct{} // holds one for each look into a pod's namespace

	detecting sync.Mutex
	started   atomic.Bool

	mu         sync.Mutex
	families   map[string]bool // the causes by which a family passes by the mesh that have been said of one pod for all
	denied     error           // a permission is missing
	unreadable string          // what was said of an inventory that cannot be read
}

// newController makes a controller from valid options with defaults filled in.
func newController(o Options) (*Controller, error) {
	c := &Controller{
		opts: o, cluster: o.cluster, redirector: o.redirector, events: o.Events,
		holds:   holds{installed: o.Installed, confined: o.Confined},
		metrics: newMetrics(o),
		mayTell: nodeevents.Limit(), mayTellBypass: nodeevents.Limit(), families: map[string]bool{},
		looks: make(chan struct{}, mostLooks),
	}
	if c.inventory = o.Inventory; c.inventory == nil {
		known := inventory.Options{Records: o.Records}
		if o.Detect != nil {
			known.CacheDir = o.Detect.CacheDir
		}
		c.inventory = inventory.New(known)
	}
	inPlace := &InPlace{
		Meshes: o.Meshes, ProcRoot: o.ProcRoot, HostRoot: o.HostRoot, Backend: o.Backend, Log: o.Log, inventory: c.inventory,
	}
	if c.cluster == nil {
		if err := c.useAPI(); err != nil {
			return nil, err
		}
	}
	if o.Detect != nil {
		inPlace.Network = c.network
	}
	inPlace.judged = c.judged
	if c.redirector == nil {
		c.redirector = inPlace
	}
	if c.events == nil && c.record == nil {
		c.events = nodeevents.Discard
	}
	var err error
	if c.selector, err = labels.Parse(o.labelSelector()); err != nil {
		return nil, fmt.Errorf("select pods: %w", err)
	}
	if c.source = o.Pods; c.source == nil {
		c.source, err = nodepods.New(nodepods.Options{
			API: c.cluster, Meshes: o.Meshes, Dialects: o.Meshes.Known(), Namespaces: o.readsNamespaces(), Attached: nodepods.Attachments(c.inventory),
			Log: o.Log,
		})
	}
	if err != nil {
		return nil, err
	}
	if c.keeper = o.Keeper; c.keeper == nil {
		c.keeper = keeper.New(c.source)
	}
	c.keeper.Limit(o.NodeBudget)
	c.tracks = keeper.NewPart[track](c.keeper, "sidecar")
	c.queue = c.keeper.Lane(keeper.Work{
		Workers: workers, First: retryFirst, Most: retryMost, Slow: func(types.UID) time.Duration { return slowLook }, Do: c.process,
	})
	if o.Metrics != nil {
		o.Metrics.MustRegister(newPodCounts(c))
	}
	c.reporter = reporter.New(o.Identity, c.News, c.tellNode, reporter.Outdated(news.PodsOutdated))
	if o.Metrics != nil && o.Pods == nil {
		o.Metrics.MustRegister(c.reporter)
	}
	return c, nil
}

// cluster has the requests of a controller to the API server. An *api.Client is one.
type cluster interface {
	nodepods.API

	// Pod reads a pod of the node from the server, not from a cache.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Label sets a label, or removes it if the value is empty, and returns the changed pod.
	Label(ctx context.Context, pod *corev1.Pod, key, value string) (*corev1.Pod, error)
	// Evict deletes the pod if disruption budgets allow it, and Delete regardless of these.
	Evict(ctx context.Context, pod *corev1.Pod) error
	Delete(ctx context.Context, pod *corev1.Pod) error
}

// useAPI makes the controller work with an API server.
func (c *Controller) useAPI() error {
	o := c.opts
	client := o.API
	if client == nil {
		var err error
		if client, err = api.New(o.Identity, o.Config, o.Node); err != nil {
			return err
		}
		if o.Metrics != nil {
			o.Metrics.MustRegister(client)
		}
	}
	c.cluster = client
	wanted := o.Permissions()
	c.permissions = func(ctx context.Context) ([]api.Right, error) { return client.Missing(ctx, wanted) }
	if o.Events == nil {
		c.record = func() (nodeevents.Recorder, func()) {
			component := o.Identity.Program("repair")
			events, stop := nodeevents.Source{
				API: func() (*api.Client, error) { return client, nil }, Component: component, Node: o.Node, Log: o.Log, Denied: func(err error) { c.refused(err) },
			}.Start()
			return events.Recorder(component), stop
		}
	}
	return nil
}

// Run works until the context ends, and then returns nil. A controller runs once.
func (c *Controller) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return errors.New("the repair controller runs or has run already")
	}
	defer c.keeper.Subscribe(c.changed)()
	defer c.source.Failing(c.watchFailed)()
	if c.record != nil {
		events, stop := c.record()
		defer stop()
		c.events = events
	}
	c.askPermissions(ctx)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.queue.ShutDown()
	if c.opts.Pods == nil {
		wg.Go(func() { _ = c.source.Run(ctx) }) // it runs once, as the controller does
		wg.Go(func() { c.reporter.Run(ctx) })
	}
	wg.Go(func() { c.tick(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), c.source.Synced) {
		return nil // the context has ended
	}
	for _, uid := range c.all() {
		c.queue.Add(uid)
	}
	c.sweep()
	c.opts.Log.Info("repair controller has the node's pods", "node", c.opts.Node,
		"pods", len(c.pods()), "action", string(c.opts.Action))
	wg.Go(func() { c.queue.Run(ctx) })
	if c.opts.VerifyInterval > 0 {
		wg.Go(func() { keeper.Round(ctx, c.opts.VerifyInterval, c.all, c.due) })
	}
	keeper.Round(ctx, resync, c.all, c.queue.Add)
	return nil
}

// tick does the regular work.
func (c *Controller) tick(ctx context.Context) {
	for keeper.Sleep(ctx, askAgain) {
		if c.suspended() > 0 || !c.source.Synced() {
			c.askPermissions(ctx)
		}
		if c.source.Synced() {
			c.keep()
			c.tracks.Drop(func(uid types.UID, t track) bool {
				return c.pod(uid) == nil && (len(t.report.Codes) == 0 || time.Since(t.reported) > reportWaits)
			})
			c.sweep()
			c.retryReports()
		}
	}
}

func (c *Controller) enqueue(pod *corev1.Pod) { c.queue.Add(c.source.RuntimeUID(pod)) }

// see notes when a pod was first seen.
func (c *Controller) see(pod *corev1.Pod) {
	c.note(pod, func(t *track) { t.seen = cmp.Or(t.seen, time.Now()) })
}

// all returns the pods, which are seen now if they were not.
func (c *Controller) all() (uids []types.UID) {
	for _, pod := range c.pods() {
		c.see(pod)
		uids = append(uids, c.source.RuntimeUID(pod))
	}
	return uids
}

// keep drops what held deletions back once no pod is broken.
func (c *Controller) keep() {
	broken := slices.ContainsFunc(c.pods(), func(pod *corev1.Pod) bool { return c.diagnose(pod).Broken })
	c.metrics.setHeld(c.holds.holding(broken))
}

// Ready returns nil while the controller works, and otherwise why it does not: a permission is missing, or the node's
// pods are not listed yet. A broken watch does not count: it resumes, and the known pods remain valid.
func (c *Controller) Ready() error {
	c.mu.Lock()
	err := c.denied
	c.mu.Unlock()
	if err == nil && !c.source.Synced() {
		err = c.source.Ready()
	}
	if err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	return nil
}

// News tells, of what needs attention while the controller works, that the API server has told nothing of the node's pods for over a minute. Of
// Options.Pods it says nothing.
func (c *Controller) News() []status.News {
	if c.opts.Pods != nil {
		return nil // whoever watches them says so
	}
	if err := c.source.Outdated(cmp.Or(c.opts.unheard, unheard.For)); err != nil {
		return []status.News{news.New(status.KindNotice, news.PodsOutdated, err.Error())}
	}
	return nil
}

// tellNode tells the log and the node's object of news.
func (c *Controller) tellNode(n status.News) {
	c.opts.Log.Warn(n.Text, "code", string(n.Code))
	nodeevents.Tell(c.events, nodeevents.Node(c.opts.Node), n)
}
