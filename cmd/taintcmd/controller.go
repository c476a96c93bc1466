package taintcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"

	"github.com/meshcni/meshcni/internal/api/unheard"
	"github.com/meshcni/meshcni/internal/node/daemonset"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/news/reporter"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/readytaint"
	"github.com/meshcni/meshcni/internal/readytaint/taintmetrics"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
)

// controller works while it has the Lease.
type controller struct {
	Program
	*settings
	config              *rest.Config
	client              kubernetes.Interface
	log                 *slog.Logger
	events              nodeevents.Recorder
	metrics             *taintmetrics.Metrics
	synced, leads       atomic.Bool
	watches             unheard.Watches
	report              *reporter.Reporter
	nodes, agents, sets cache.Store                // what the watches have told
	state               readytaint.State           // what the last round knew
	own                 map[types.UID]*corev1.Node // nodes as we left them, until the watch tells of that
	held                int                        // nodes over the share in the last round
}

// codeOutdated is the notice that the API server has told this controller nothing for long.
const codeOutdated = "nodes-outdated"

// news is that notice. One that only stands by watches nothing.
func (c *controller) news() []status.News {
	if err := c.watches.Err(cmp.Or(c.unheard, unheard.For), "nodes or agents", "taints may stay as they are"); err != nil {
		return []status.News{news.New(status.KindNotice, codeOutdated, err.Error())}
	}
	return nil
}

// tell tells the log and the events of it.
func (c *controller) tell(n status.News) {
	c.log.Warn(n.Text, "code", string(n.Code))
	c.warn("AgentTaintOutdated", n.Text)
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
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.lease}, Client: c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.identity},
		},
		// The times of Kubernetes' own controllers (RecommendedDefaultLeaderElectionConfiguration of k8s.io/component-base/config/v1alpha1).
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true, Name: c.lease,
		Callbacks: leaderelection.LeaderCallbacks{OnStoppedLeading: func() {}, OnStartedLeading: func(leading context.Context) {
			working.Add(1)
			defer working.Done()
			leading, stop := context.WithCancel(leading)
			defer context.AfterFunc(ctx, stop)()
			c.lead(leading)
		}},
	})
	if err != nil {
		return fmt.Errorf("prepare the election: %w", err)
	}
	defer context.AfterFunc(ctx, func() { working.Wait(); stop() })()
	elector.Run(electing)
	working.Wait()
	if ctx.Err() != nil {
		return nil // the caller ended it
	}
	return fmt.Errorf("lost the Lease %s/%s", c.namespace, c.lease)
}

// lead works until ctx ends. Its queue has one key: what changes while it works is seen in the next round.
func (c *controller) lead(ctx context.Context) {
	c.log.Info("this controller is the one that works", "lease", c.lease, "identity", c.identity)
	c.leads.Store(true)
	c.metrics.Leader.Set(1)
	defer c.metrics.Leader.Set(0)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 30*time.Second))
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var running sync.WaitGroup
	defer running.Wait()
	var all []cache.InformerSynced
	watch := func(client cache.Getter, resource, namespace string, object runtime.Object, options func(*metav1.ListOptions)) cache.Store {
		lw := cache.NewFilteredListWatchFromClient(client, resource, namespace, options)
		i := cache.NewSharedInformer(unheard.ListWatch(lw, func(err error) { c.watches.Note(resource, err) }), object, 0)
		_ = i.SetTransform(trim) // an error: it runs already
		_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { queue.Add("") }, UpdateFunc: func(any, any) { queue.Add("") }, DeleteFunc: func(any) { queue.Add("") },
		})
		running.Go(func() { i.Run(ctx.Done()) })
		all = append(all, i.HasSynced)
		return i.GetStore()
	}
	core := c.client.CoreV1().RESTClient()
	c.nodes = watch(core, "nodes", "", &corev1.Node{}, func(*metav1.ListOptions) {})
	c.agents = watch(core, "pods", c.namespace, &corev1.Pod{}, func(o *metav1.ListOptions) { o.LabelSelector = c.selector })
	c.sets = watch(c.client.AppsV1().RESTClient(), "daemonsets", c.namespace, &appsv1.DaemonSet{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.daemonSet).String()
	})
	running.Go(func() { c.report.Run(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), all...) {
		return
	}
	c.synced.Store(true)
	for queue.Add(""); ; queue.Done("") {
		if _, ends := queue.Get(); ends {
			return
		}
		next, failed := c.round(ctx)
		if next > 0 {
			queue.AddAfter("", next)
		}
		if failed {
			queue.AddRateLimited("")
		} else {
			queue.Forget("")
		}
	}
}

// trim leaves of objects what is looked at: a large cluster's nodes are mostly lists of images.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		info := o.Status.NodeInfo
		o.ManagedFields, o.Annotations, o.Spec = nil, nil, corev1.NodeSpec{Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: strings.Clone(info.BootID), OperatingSystem: strings.Clone(info.OperatingSystem)}}
	case *corev1.Pod:
		o.ManagedFields, o.Annotations, o.Spec = nil, nil, corev1.PodSpec{NodeName: o.Spec.NodeName}
	}
	return object, nil
}

// round observes, decides and acts. After next it should do so again though nothing has changed; zero: it need not.
func (c *controller) round(ctx context.Context) (next time.Duration, failed bool) {
	present := slices.DeleteFunc(c.sets.List(), func(o any) bool { return o.(*appsv1.DaemonSet).DeletionTimestamp != nil })
	if len(present) == 0 {
		// Without agents by design the clocks stand still, and nothing is held against a node.
		c.state = nil
		c.metrics.Observe(nil)
		c.breaker(nil)
		return 0, false
	}
	set := present[0].(*appsv1.DaemonSet)
	agents, own, byName := map[string][]*corev1.Pod{}, map[types.UID]*corev1.Node{}, map[string]*corev1.Node{}
	for _, o := range c.agents.List() {
		pod := o.(*corev1.Pod)
		agents[pod.Spec.NodeName] = append(agents[pod.Spec.NodeName], pod)
	}
	var nodes []readytaint.Node
	for _, o := range c.nodes.List() {
		node := o.(*corev1.Node)
		if mine := c.own[node.UID]; mine != nil {
			if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, mine.ResourceVersion); err == nil && order < 0 {
				own[node.UID], node = mine, mine
			}
		}
		byName[node.Name] = node
		nodes = append(nodes, c.observe(node, agents[node.Name], set))
	}
	var plan readytaint.Plan
	c.own = own
	c.state, plan = c.Next(c.state, nodes, time.Now())
	c.metrics.Observe(plan.Nodes)
	c.breaker(plan.Held)
	for _, a := range plan.Actions {
		err := c.do(ctx, set, byName[a.Node], a)
		if ctx.Err() != nil {
			return 0, false
		}
		// A node that is gone, or that another program changed meanwhile, is news that the watch brings.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = true
			c.metrics.Failures.Inc()
			c.log.Warn("cannot change the taints of a node; it is tried again", "node", a.Node, "change", a.Change, "error", err)
		}
	}
	return plan.Next, failed
}

// do changes a node. What the watches tell may be late, above all after the API server was away: before a taint is put back, the
// API server is asked whether the agent is still gone. A removal needs no such care.
func (c *controller) do(ctx context.Context, set *appsv1.DaemonSet, node *corev1.Node, a readytaint.Action) error {
	kind, reason, text := corev1.EventTypeNormal, "AgentTaintRemoved", "the taint %s is removed: %s"
	if a.Change == readytaint.Add {
		kind, reason, text = corev1.EventTypeWarning, "AgentTaintAdded", "new pods are kept off by the taint %s: %s"
		now, err := c.client.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read node %s: %w", a.Node, err)
		}
		list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{
			LabelSelector: c.selector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", a.Node).String(),
		})
		if err != nil {
			return fmt.Errorf("list the agents of node %s: %w", a.Node, err)
		}
		var pods []*corev1.Pod
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
		if now.UID != node.UID || !c.StillDue(c.state, c.observe(now, pods, set), time.Now()) {
			return nil // the watches will tell
		}
		node = now
	}
	changed, err := c.patch(ctx, node, a.Change)
	if err != nil {
		return err
	}
	c.own[changed.UID] = changed
	c.metrics.Changes.WithLabelValues(string(a.Change), string(a.Why)).Inc()
	c.log.Info("taint changed", "node", a.Node, "change", a.Change, "reason", a.Why, "key", c.key)
	c.events.Event(nodeevents.Node(a.Node), kind, reason, fmt.Sprintf(text, c.key, map[readytaint.Why]string{
		readytaint.AgentReady: "the agent is ready", readytaint.NoAgent: "no agent can run here",
		readytaint.NodeBooted: "the node has booted, and its agent is not ready yet",
		readytaint.AgentGone:  "the agent has been gone or not ready since " + a.Since.UTC().Format("15:04:05 MST"),
	}[a.Why]))
	return nil
}

// patch changes the taints of exactly this state of the node: the resource version and UID in it are preconditions, so no taint
// that another program sets meanwhile is lost. A list is replaced as a whole by a merge patch. If the node has changed,
// apierrors.IsConflict(err).
func (c *controller) patch(ctx context.Context, node *corev1.Node, change readytaint.Change) (*corev1.Node, error) {
	taints := slices.Clone(node.Spec.Taints)
	if change == readytaint.Add {
		taints = append(taints, corev1.Taint{Key: c.key, Value: readytaint.PutBack, Effect: corev1.TaintEffectNoSchedule})
	} else {
		taints = slices.DeleteFunc(taints, c.ours)
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID}, "spec": map[string]any{"taints": taints},
	})
	if err != nil {
		return nil, err
	}
	out, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s taint %s of node %s: %w", change, c.key, node.Name, err)
	}
	return out, nil
}

// ours reports whether a taint is to go when the agent is ready.
func (s *settings) ours(t corev1.Taint) bool {
	return t.Key == s.key || slices.Contains(s.alsoRemove, t.Key)
}

// removeAll takes the taint from every node, and returns from how many. It lists them anew while other programs change nodes, too.
func (c *controller) removeAll(ctx context.Context) (removed int, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		var conflict, others error
		for i := range nodes.Items {
			node := &nodes.Items[i]
			if !slices.ContainsFunc(node.Spec.Taints, c.ours) {
				continue
			}
			switch _, err := c.patch(ctx, node, readytaint.Remove); {
			case err == nil:
				c.log.Info("taint removed", "node", node.Name)
				removed++
			case apierrors.IsConflict(err):
				conflict = err
			case !apierrors.IsNotFound(err): // the node is gone
				others = errors.Join(others, err)
			}
		}
		return errors.Join(conflict, others)
	})
	return removed, err
}

// breaker reports that the share is used up, and the end of that.
func (c *controller) breaker(held []string) {
	switch {
	case len(held) > 0 && c.held == 0:
		c.metrics.Breaker.Set(1)
		c.log.Error("too many nodes have no agent that is ready: no further taint is put back", "held", len(held), "first", held[0], "max-share", c.MaxShare)
		text := fmt.Sprintf("%d nodes have no agent that is ready and are not tainted, since a share of %v of all nodes is already; the first is %s", len(held), c.MaxShare, held[0])
		c.warn("AgentTaintHeld", text)
		c.events.Event(nodeevents.Node(held[0]), corev1.EventTypeWarning, "AgentTaintHeld", text)
	case len(held) == 0 && c.held > 0:
		c.metrics.Breaker.Set(0)
		c.log.Info("taints are put back again where agents are gone")
	}
	c.held = len(held)
}

// warn records an event about the agents' DaemonSet.
func (c *controller) warn(reason, text string) {
	set := &corev1.ObjectReference{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: c.namespace, Name: c.daemonSet}
	c.events.Event(set, corev1.EventTypeWarning, reason, truncate.Text(text, truncate.MaxFinding))
}

// observe returns an observation of a node. Our own taint does not count against its place, since it would be what keeps the agent off; what
// is wrong with the DaemonSet is no answer, and the node stays as it is.
func (s *settings) observe(node *corev1.Node, pods []*corev1.Pod, set *appsv1.DaemonSet) readytaint.Node {
	n := readytaint.Node{Name: node.Name, UID: string(node.UID), Boot: node.Status.NodeInfo.BootID}
	var err error
	if n.Place, _, err = daemonset.Place(node, &set.Spec.Template.Spec, s.key); err != nil {
		n.Place = readytaint.KeptOff
	}
	for _, t := range node.Spec.Taints {
		if t.Key == s.key {
			n.Tainted, n.PutBack = true, n.PutBack || t.Value == readytaint.PutBack
		} else if s.ours(t) {
			n.Foreign = true
		}
	}
	for _, pod := range pods {
		run := []string{string(pod.UID)}
		for _, c := range pod.Status.ContainerStatuses {
			run = append(run, c.ContainerID)
		}
		n.Agents = append(n.Agents, readytaint.Agent{
			Instance: strings.Join(run, " "),
			Ready: pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}),
		})
	}
	return n
}
