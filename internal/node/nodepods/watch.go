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

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/api/unheard"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/status"
)

// Options configures a [Watch]. API is required.
type Options struct {
	// API is the API server, and has the node's pods.
	API API
	// Namespaces makes it read the namespaces that the pods are in. Without it, Namespace returns [ErrNotRead].
	Namespaces bool
	// Meshes are the node's, as the plugin is configured, by which pods are judged; see [Watch.SetMeshes].
	Meshes dialect.Set
	// Dialects are the meshes whose keys are kept of large pods; see podkeep.Keep. Without any, nothing is kept of these but
	// that they are there.
	Dialects []dialect.Dialect
	// MaxBytes bounds what is kept of all pods together, in the units of podkeep.Weight; those that come beyond it are kept as
	// those that are too large. Zero means [DefaultMaxBytes].
	MaxBytes int
	// Attached reports whether the node's runtime has attached a network to a pod of that namespace, name and UID: what a runtime
	// says of a static pod, whose mirror is at the API server. See [Attachments]. nil: nobody knows.
	Attached func(status.ID) bool
	// Patience bounds the wait of [Watch.Pod] for a pod that the API server may be about to tell of. Default: 20 ms, which
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

// DefaultMaxBytes is the default of Options.MaxBytes: what a full node's 110 pods may take if each is as large as one may be, and
// as much again.
const DefaultMaxBytes = 16 << 20

// Watch keeps the pods of a node. Its methods are safe for concurrent use. Make one with [New].
type Watch struct {
	opts   Options
	server *server

	mu         sync.Mutex
	running    context.Context // nil before Run
	watches    sync.WaitGroup
	judge      *judge.Judge
	pods       map[types.UID]*corev1.Pod // by the API server's UID
	judged     map[types.UID]judged      // beside them; one that is not there, or not of the pod as it is, has not been asked for
	sorted     []*corev1.Pod             // all of them, in order; nil: they have changed since
	bytes      int                       // what they take
	mirrored   map[types.UID]types.UID   // the mirrors of static pods by the UIDs of these, as the runtime has them
	synced     bool
	namespaces map[string]*namespace
	subs       map[int]func(types.UID)
	fails      map[int]func(error) // of Failing
	lastSub    int
	news       chan struct{} // closed when anything changes
	failing    error         // why the pods may be out of date; nil: they are not
	unheard    unheard.Watches
}

// namespace is one that has pods here.
type namespace struct {
	pods   int
	cancel context.CancelFunc // of its watch; nil: it is not watched
	known  bool
	is     *corev1.Namespace // nil, if known: it does not exist
	large  error             // why it is not known although the API server has told of it
	// failing is the reason that it may be out of date. It goes with the namespace, whatever its watch says after that.
	failing error
}

// New returns a Watch that has nothing until Run. An error says what is wrong with the options.
func New(o Options) (*Watch, error) {
	if o.API == nil {
		return nil, errors.New("watch the pods of a node: API is required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Patience, o.MaxBytes = cmp.Or(o.Patience, defaultPatience), cmp.Or(o.MaxBytes, DefaultMaxBytes)
	if o.Attached == nil {
		o.Attached = func(status.ID) bool { return false }
	}
	s := &server{o.API, func(pod *corev1.Pod) *corev1.Pod { return podkeep.Keep(o.Dialects, pod) }}
	return &Watch{
		opts: o, server: s, judge: judge.New(o.Meshes), pods: map[types.UID]*corev1.Pod{}, judged: map[types.UID]judged{}, mirrored: map[types.UID]types.UID{}, namespaces: map[string]*namespace{},
		subs: map[int]func(types.UID){}, fails: map[int]func(error){}, news: make(chan struct{}),
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
	w.server.watchPods(ctx, podStore{w: w}, func(err error) { w.failed(context.Background(), "pods", &w.failing, err) })
	w.watches.Wait()
	return nil
}

// Pods returns all pods of the node in the order of their names, as podkeep.Keep leaves them: of those whose containers have
// ended there is little. The caller must change neither the pods nor the list.
func (w *Watch) Pods() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sorted == nil {
		w.sorted = slices.SortedFunc(maps.Values(w.pods), func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
	}
	return w.sorted
}

// ByUID returns the pod with the UID, which is the API server's, or that of a static pod whose mirror it is, or nil. Only the node's
// runtime can say what a mirror is of: see Options.Attached and [Watch.Known].
func (w *Watch) ByUID(uid types.UID) *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byUID(uid)
}

func (w *Watch) byUID(uid types.UID) *corev1.Pod {
	if own, ok := w.mirrored[uid]; ok {
		return w.pods[own]
	}
	return w.pods[uid]
}

// RuntimeUID returns the UID by which the runtime and the control groups know a pod: its own, unless it is the mirror of a static
// pod and the runtime has said so.
func (w *Watch) RuntimeUID(pod *corev1.Pod) types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runtimeUID(pod)
}

func (w *Watch) runtimeUID(pod *corev1.Pod) types.UID {
	if static := podid.Mirrored(pod); static != "" && w.mirrored[static] == pod.UID {
		return static
	}
	return pod.UID
}

// Known returns the pod that the node's runtime means by the namespace, the name and the UID, or nil. It takes the runtime's word
// for what a mirror is of, so it must be asked with nothing but that.
func (w *Watch) Known(id status.ID) *corev1.Pod {
	found, _, _ := w.find(id, false)
	return found.Pod
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
	case n != nil && n.large != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnknown, n.large)
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

// Outdated returns why what is known is out of date, once something has been for that long.
func (w *Watch) Outdated(after time.Duration) error {
	return w.unheard.Err(after, "the node's pods", "the agent may not know of new ones")
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

// Failing calls failed with each error by which the API server does not tell of pods or namespaces, as it is, until cancel is called; a call that
// is under way may still end after that.
func (w *Watch) Failing(failed func(error)) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastSub++
	id := w.lastSub
	w.fails[id] = failed
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.fails, id)
	}
}

// Subscribe calls changed with the [Watch.RuntimeUID] of each pod that is new, changed or gone, or of whose namespace labels or
// annotations changed, until cancel is called; a call that is under way may still end after that. changed must not block.
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
func (w *Watch) Pod(ctx context.Context, id status.ID) (agentsock.Pod, error) {
	patience := time.NewTimer(w.opts.Patience)
	defer patience.Stop()
	for {
		found, hopeless, news := w.find(id, true)
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

// find returns the pod that the runtime means, and its namespace if that is asked for too, if both are known. It is hopeless to
// wait for what the API server refuses, and for a pod of which not enough is kept.
func (w *Watch) find(id status.ID, namespace bool) (found agentsock.Pod, hopeless bool, news <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.meant(id)
	switch {
	case p == nil:
		return found, id.UID == "" || w.failing != nil, w.news
	case !namespace:
		return agentsock.Pod{Pod: p}, false, w.news
	case podkeep.Whole(p) != nil || podid.Ended(p): // what is kept of either does not say what a mesh means for it
		return found, true, w.news
	}
	if w.opts.Namespaces {
		var err error
		if found.Namespace, err = w.namespace(p.Namespace); err != nil {
			n := w.namespaces[p.Namespace]
			return agentsock.Pod{}, n.failing != nil || n.large != nil, w.news
		}
	}
	found.Pod = p
	return found, false, w.news
}

// meant returns the pod that the runtime means. That a pod mirrors a static one is known from then on.
func (w *Watch) meant(id status.ID) *corev1.Pod {
	if p := w.byUID(types.UID(id.UID)); p != nil {
		if !podid.Is(p, id.Namespace, id.Name, id.UID) {
			return nil
		}
		return p
	}
	if !podid.IsStatic(id.UID) {
		return nil
	}
	for _, p := range w.pods {
		if podid.Is(p, id.Namespace, id.Name, id.UID) {
			w.mirrored[types.UID(id.UID)] = p.UID
			return p
		}
	}
	return nil
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

// failed notes at its place why the API server does not answer; nil: it does. Once the context has ended, nobody asks.
func (w *Watch) failed(ctx context.Context, what string, at *error, err error) {
	w.mu.Lock()
	if ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	before := *at
	*at = err
	w.unheard.Note(what, err)
	tell := slices.Collect(maps.Values(w.fails))
	w.mu.Unlock()
	if err != nil {
		for _, f := range tell {
			f(err)
		}
	}
	switch {
	case err == nil && before != nil:
		w.opts.Log.Info("the API server answers again", "watch", what)
	case err != nil && (before == nil || before.Error() != err.Error()):
		w.opts.Log.Warn("what is known of the node's pods may be out of date", "watch", what, "error", err.Error())
	}
}

// confirmed returns the UID of the static pod that a pod mirrors, if the runtime says so; otherwise "".
func (w *Watch) confirmed(pod *corev1.Pod) types.UID {
	static := podid.Mirrored(pod)
	if static == "" || !w.opts.Attached(status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(static)}) {
		return ""
	}
	return static
}

// put stores a pod, which is kept as [podkeep.Keep] left it, and has its namespace watched. static is what it is known to mirror.
func (w *Watch) put(pod *corev1.Pod, static types.UID) (changed []types.UID) {
	old := w.pods[pod.UID]
	if static != "" && w.mirrored[static] != pod.UID {
		w.mirrored[static] = pod.UID
		changed = append(changed, pod.UID) // by which it was known until now
	} else if old != nil && old.ResourceVersion == pod.ResourceVersion {
		return nil
	}
	if old != nil {
		w.bytes -= weight(old)
	}
	most := w.opts.MaxBytes
	if podid.Ended(pod) {
		most /= 2 // so that there is always room for those that run
	}
	if w.bytes+weight(pod) > most {
		pod = podkeep.TooLarge(w.opts.Dialects, pod, fmt.Sprintf("the node's pods take more than %d bytes together", most))
	}
	w.bytes += weight(pod)
	w.pods[pod.UID], w.sorted = pod, nil
	w.enter(pod.Namespace)
	if old != nil {
		w.leave(old.Namespace)
	}
	return append(changed, w.runtimeUID(pod))
}

// weight is a pod's share of Options.MaxBytes: nothing if it has ended and only its names and state are kept.
func weight(pod *corev1.Pod) int {
	if podid.Ended(pod) && len(pod.Spec.Containers) == 0 {
		return 0
	}
	return podkeep.Weight(pod)
}

// drop forgets a pod.
func (w *Watch) drop(uid types.UID) (changed []types.UID) {
	old := w.pods[uid]
	if old == nil {
		return nil
	}
	known := w.runtimeUID(old)
	if known != uid {
		delete(w.mirrored, known)
	}
	w.bytes -= weight(old)
	delete(w.pods, uid)
	delete(w.judged, uid)
	w.sorted = nil
	w.leave(old.Namespace)
	return []types.UID{known}
}

func (w *Watch) enter(name string) {
	n := w.namespaces[name]
	if n == nil {
		n = &namespace{}
		w.namespaces[name] = n
	}
	n.pods++
	w.follow(name, n)
}

// follow has a namespace watched, if they are and it is not yet.
func (w *Watch) follow(name string, n *namespace) {
	if !w.opts.Namespaces || n.cancel != nil || w.running == nil {
		return
	}
	ctx, cancel := context.WithCancel(w.running)
	n.cancel = cancel
	store := namespaceStore{w: w, n: n, name: name}
	w.watches.Go(func() {
		w.server.watchNamespace(ctx, name, store, func(err error) { w.failed(ctx, "namespace "+name, &n.failing, err) })
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
	w.unheard.Note("namespace "+name, nil)
}

// learn notes what the API server says of a namespace; nil: there is none.
func (w *Watch) learn(n *namespace, name string, is *metav1.PartialObjectMetadata) (changed []types.UID) {
	n.known, n.is, n.large = true, nil, nil
	if is != nil {
		n.is, n.large = podkeep.KeepNamespace(w.opts.Dialects, &corev1.Namespace{ObjectMeta: is.ObjectMeta})
		n.known = n.large == nil
	}
	for _, p := range w.pods {
		if p.Namespace == name && !podid.Ended(p) {
			changed = append(changed, w.runtimeUID(p))
		}
	}
	return changed
}
