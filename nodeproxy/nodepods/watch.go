package nodepods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// Options configures a [Watch]. Config and Node are required.
type Options struct {
	// Config is how to reach the API server.
	Config *rest.Config
	// Node is the name of the node whose pods are wanted.
	Node string
	// Namespaces makes it read the namespaces that the pods are in. Without it, Namespace returns [ErrNotRead].
	Namespaces bool
	// Patience is how long [Watch.Pod] waits for a pod that the API server may be about to tell of. Default: 20 ms, which
	// leaves the plugin time to ask the API server itself.
	Patience time.Duration
	// Log receives a record when the API server stops answering, and when it answers again. nil discards them.
	Log *slog.Logger
}

// ErrNotRead: namespaces are not read. Check with errors.Is(err, nodepods.ErrNotRead).
var ErrNotRead = errors.New("namespaces are not read")

// ErrUnknown: the API server has not said anything about a namespace yet. Check with errors.Is(err, nodepods.ErrUnknown).
var ErrUnknown = errors.New("not known yet")

const defaultPatience = 20 * time.Millisecond

// Watch keeps the pods of a node. Its methods are safe for concurrent use. Make one with [New].
type Watch struct {
	opts   Options
	server *server

	mu         sync.Mutex
	running    context.Context // nil before Run
	watches    sync.WaitGroup
	pods       map[types.UID]*corev1.Pod
	synced     bool
	namespaces map[string]*namespace
	subs       map[int]func(types.UID)
	lastSub    int
	news       chan struct{} // closed when anything changes
	failing    error         // why the pods may be out of date; nil: they are not
}

// namespace is one that has pods here.
type namespace struct {
	pods   int
	cancel context.CancelFunc // of its watch; nil: it is not watched
	known  bool
	is     *corev1.Namespace // nil, if known: it does not exist
	// failing is why that may be out of date. It goes with the namespace, whatever its watch says after that.
	failing error
}

// New returns a Watch that has nothing until Run. An error says what is wrong with the options.
func New(o Options) (*Watch, error) {
	if o.Config == nil || o.Node == "" {
		return nil, errors.New("watch the pods of a node: Config and Node are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	s, err := newServer(o.Config)
	if err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", o.Node, err)
	}
	return &Watch{
		opts: o, server: s, pods: map[types.UID]*corev1.Pod{}, namespaces: map[string]*namespace{},
		subs: map[int]func(types.UID){}, news: make(chan struct{}),
	}, nil
}

// Run watches until the context ends, and then returns nil. What it knew stays known. A Watch runs once.
func (w *Watch) Run(ctx context.Context) error {
	w.mu.Lock()
	again := w.running != nil
	w.running = ctx
	w.mu.Unlock()
	if again {
		return errors.New("the watch of the node's pods runs or has run already")
	}
	w.server.watchPods(ctx, w.opts.Node, podStore{w: w}, func(err error) { w.failed("pods", &w.failing, err) })
	w.watches.Wait()
	return nil
}

// RuntimeUID returns the UID by which the runtime and the pod's control groups know a pod. The API server's copy of a static
// pod has another one.
func RuntimeUID(pod *corev1.Pod) types.UID {
	if uid, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok && uid != "" {
		return types.UID(uid)
	}
	return pod.UID
}

// Pods returns all pods of the node in the order of their names. The caller must not change them.
func (w *Watch) Pods() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*corev1.Pod, 0, len(w.pods))
	for _, p := range w.pods {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all
}

// Namespace returns the name, labels and annotations of a namespace that has pods here. Of any other, and of one that the API
// server has not told of yet, errors.Is(err, nodepods.ErrUnknown). If the API server says that there is none,
// apierrors.IsNotFound(err).
func (w *Watch) Namespace(name string) (*corev1.Namespace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.namespace(name)
}

func (w *Watch) namespace(name string) (*corev1.Namespace, error) {
	n := w.namespaces[name]
	switch {
	case !w.opts.Namespaces:
		return nil, fmt.Errorf("namespace %s: %w", name, ErrNotRead)
	case n != nil && !n.known && n.failing != nil:
		return nil, fmt.Errorf("namespace %s: %w: %w", name, ErrUnknown, n.failing)
	case n == nil || !n.known:
		return nil, fmt.Errorf("namespace %s: %w", name, ErrUnknown)
	case n.is == nil:
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	return n.is, nil
}

// Synced reports whether Pods is complete.
func (w *Watch) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.synced
}

// Ready returns why what is known may be out of date, or nil: nothing has been read yet, or the API server does not answer.
func (w *Watch) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(w.namespaces)) {
		if err := w.namespaces[name].failing; err != nil {
			errs = append(errs, fmt.Errorf("watch namespace %s: %w", name, err))
		}
	}
	if w.failing != nil {
		errs = append(errs, fmt.Errorf("watch pods: %w", w.failing))
	}
	if len(errs) == 0 && !w.synced {
		errs = append(errs, errors.New("the node's pods have not been read yet"))
	}
	return errors.Join(errs...)
}

// Subscribe calls changed with the [RuntimeUID] of each pod that is new, changed or gone, or whose namespace changed, until
// cancel is called; a call that is under way may still end after that. changed must not block.
func (w *Watch) Subscribe(changed func(types.UID)) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastSub++
	id := w.lastSub
	w.subs[id] = changed
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subs, id)
	}
}

// Pod answers a request of the plugin; it is that of agentsock.Handler. It waits a little for a pod that is not known, and
// for its namespace, since the kubelet may have been told of the pod earlier than this node's agent.
func (w *Watch) Pod(ctx context.Context, id attachment.Pod) (agentsock.Pod, error) {
	patience := time.NewTimer(w.opts.Patience)
	defer patience.Stop()
	for {
		found, hopeless, news := w.find(id)
		if found.Pod != nil {
			return found, nil
		}
		if hopeless {
			return agentsock.Pod{}, agentsock.ErrUnknown
		}
		select {
		case <-news:
		case <-patience.C:
			return agentsock.Pod{}, agentsock.ErrUnknown
		case <-ctx.Done():
			return agentsock.Pod{}, context.Cause(ctx)
		}
	}
}

// find returns the pod if it is known. It is hopeless to wait for it while the API server refuses what is missing.
func (w *Watch) find(id attachment.Pod) (found agentsock.Pod, hopeless bool, news <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[types.UID(id.UID)]
	if id.UID == "" || p == nil || p.Name != id.Name || p.Namespace != id.Namespace {
		return found, id.UID == "" || w.failing != nil, w.news
	}
	if w.opts.Namespaces {
		var err error
		if found.Namespace, err = w.namespace(p.Namespace); err != nil {
			return agentsock.Pod{}, w.namespaces[p.Namespace].failing != nil, w.news
		}
	}
	found.Pod = p
	return found, false, w.news
}

// change does something to what is known, and then tells who wants to know.
func (w *Watch) change(do func() (changed []types.UID)) {
	w.mu.Lock()
	changed := do()
	close(w.news)
	w.news = make(chan struct{})
	subs := make([]func(types.UID), 0, len(w.subs))
	for _, s := range w.subs {
		subs = append(subs, s)
	}
	w.mu.Unlock()
	for _, uid := range changed {
		for _, s := range subs {
			s(uid)
		}
	}
}

// failed notes at its place why the API server does not answer; nil: it does.
func (w *Watch) failed(what string, at *error, err error) {
	w.mu.Lock()
	before := *at
	*at = err
	w.mu.Unlock()
	switch {
	case err == nil && before != nil:
		w.opts.Log.Info("the API server answers again", "watch", what)
	case err != nil && (before == nil || before.Error() != err.Error()):
		w.opts.Log.Warn("what is known of the node's pods may be out of date", "watch", what, "error", err.Error())
	}
}

// put stores a pod, and has its namespace watched.
func (w *Watch) put(pod *corev1.Pod) (changed []types.UID) {
	uid := RuntimeUID(pod)
	old := w.pods[uid]
	if old != nil && old.UID == pod.UID && old.ResourceVersion == pod.ResourceVersion {
		return nil
	}
	w.pods[uid] = dialect.Trim(pod)
	w.enter(pod.Namespace)
	if old != nil {
		w.leave(old.Namespace)
	}
	return []types.UID{uid}
}

// drop forgets a pod, unless another has its place already.
func (w *Watch) drop(pod *corev1.Pod) (changed []types.UID) {
	uid := RuntimeUID(pod)
	if old := w.pods[uid]; old == nil || old.UID != pod.UID {
		return nil
	}
	delete(w.pods, uid)
	w.leave(pod.Namespace)
	return []types.UID{uid}
}

func (w *Watch) enter(name string) {
	n := w.namespaces[name]
	if n == nil {
		n = &namespace{}
		w.namespaces[name] = n
	}
	n.pods++
	if !w.opts.Namespaces || n.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(w.running)
	n.cancel = cancel
	store := namespaceStore{w: w, n: n, name: name}
	w.watches.Go(func() {
		w.server.watchNamespace(ctx, name, store, func(err error) {
			if ctx.Err() == nil {
				w.failed("namespace "+name, &n.failing, err)
			}
		})
	})
}

func (w *Watch) leave(name string) {
	n := w.namespaces[name]
	if n.pods--; n.pods > 0 {
		return
	}
	if n.cancel != nil {
		n.cancel()
	}
	delete(w.namespaces, name)
}

// learn notes what the API server says of a namespace; nil: there is none.
func (w *Watch) learn(n *namespace, name string, is *metav1.PartialObjectMetadata) (changed []types.UID) {
	var now *corev1.Namespace
	if is != nil {
		now = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: is.Name, UID: is.UID, Labels: is.Labels, Annotations: is.Annotations, DeletionTimestamp: is.DeletionTimestamp,
		}}
	}
	n.known, n.is = true, now
	for uid, p := range w.pods {
		if p.Namespace == name {
			changed = append(changed, uid)
		}
	}
	return changed
}
