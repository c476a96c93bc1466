package nodepods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/internal/api/unheard"
	"github.com/meshcni/meshcni/internal/node/api"
)

// API has the requests of a Watch to the API server. An *api.Client is one.
type API interface {
	// ListPods lists the node's pods, each as keep leaves it, and WatchPods watches them.
	ListPods(ctx context.Context, o metav1.ListOptions, keep func(*corev1.Pod) *corev1.Pod) (*corev1.PodList, error)
	WatchPods(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	// ListOne lists the metadata of what has the name, and WatchOne watches it.
	ListOne(ctx context.Context, kind schema.GroupVersionResource, namespace, name string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	WatchOne(ctx context.Context, kind schema.GroupVersionResource, namespace, name string, o metav1.ListOptions) (watch.Interface, error)
}

// server is the API server, with the two kinds that are watched.
type server struct {
	api  API
	keep func(*corev1.Pod) *corev1.Pod
}

// watchPods keeps the store like the node's pods until the context ends.
func (s *server) watchPods(ctx context.Context, store cache.ReflectorStore, failed func(error)) {
	reflect(ctx, &corev1.Pod{}, store, failed,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.api.ListPods(ctx, o, s.keep)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := s.api.WatchPods(ctx, o)
			if err != nil {
				return nil, err
			}
			return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
				if pod, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Bookmark {
					e.Object = s.keep(pod)
				}
				return e, true
			}), nil
		})
}

// watchNamespace keeps the store like one namespace until the context ends.
func (s *server) watchNamespace(ctx context.Context, name string, store cache.ReflectorStore, failed func(error)) {
	reflect(ctx, &metav1.PartialObjectMetadata{}, store, failed,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.api.ListOne(ctx, api.Namespaces, "", name, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.api.WatchOne(ctx, api.Namespaces, "", name, o)
		})
}

// reflect runs a reflector. failed is called with the result of each list and watch.
func reflect(
	ctx context.Context, kind runtime.Object, store cache.ReflectorStore, failed func(error),
	list cache.ListWithContextFunc, watches cache.WatchFuncWithContext,
) {
	lw := unheard.ListWatch(&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watches}, failed)
	// failed has its own log; the reflector's is not structured like it.
	ctx = klog.NewContext(ctx, klog.Logger{})
	cache.NewReflectorWithOptions(lw, kind, store, cache.ReflectorOptions{Name: "nodepods"}).RunWithContext(ctx)
}

// podStore is a reflector's way to a Watch's pods.
type podStore struct{ w *Watch }

// Add implements [cache.ReflectorStore].
func (s podStore) Add(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		static := s.w.confirmed(pod)
		s.w.change(func() []types.UID { return s.w.put(pod, static) })
	}
	return nil
}

// Update implements [cache.ReflectorStore].
func (s podStore) Update(obj any) error { return s.Add(obj) }

// Delete implements [cache.ReflectorStore].
func (s podStore) Delete(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		s.w.change(func() []types.UID { return s.w.drop(pod.UID) })
	}
	return nil
}

// Replace implements [cache.ReflectorStore]: the list is complete.
func (s podStore) Replace(list []any, _ string) error {
	s.w.failed(context.Background(), "pods", &s.w.failing, nil)
	static := map[types.UID]types.UID{}
	for _, obj := range list {
		if pod, ok := obj.(*corev1.Pod); ok {
			static[pod.UID] = s.w.confirmed(pod)
		}
	}
	s.w.change(func() (changed []types.UID) {
		for uid := range s.w.pods {
			if _, there := static[uid]; !there {
				changed = append(changed, s.w.drop(uid)...)
			}
		}
		for _, obj := range list {
			if pod, ok := obj.(*corev1.Pod); ok {
				changed = append(changed, s.w.put(pod, static[pod.UID])...)
			}
		}
		s.w.synced = true
		return changed
	})
	return nil
}

// Resync implements [cache.ReflectorStore].
func (s podStore) Resync() error { return nil }

// namespaceStore is a reflector's way to one of a Watch's namespaces.
type namespaceStore struct {
	w    *Watch
	n    *namespace
	name string
}

func (s namespaceStore) learn(obj any) {
	is, _ := obj.(*metav1.PartialObjectMetadata)
	s.w.change(func() []types.UID {
		if s.w.namespaces[s.name] != s.n || is != nil && is.Name != s.name {
			return nil // it was forgotten meanwhile
		}
		return s.w.learn(s.n, s.name, is)
	})
}

// Add implements [cache.ReflectorStore].
func (s namespaceStore) Add(obj any) error { s.learn(obj); return nil }

// Update implements [cache.ReflectorStore].
func (s namespaceStore) Update(obj any) error { s.learn(obj); return nil }

// Delete implements [cache.ReflectorStore].
func (s namespaceStore) Delete(any) error { s.learn(nil); return nil }

// Replace implements [cache.ReflectorStore].
func (s namespaceStore) Replace(list []any, _ string) error {
	s.w.failed(context.Background(), "namespace "+s.name, &s.n.failing, nil)
	if len(list) == 0 {
		s.learn(nil)
	}
	for _, obj := range list {
		s.learn(obj)
	}
	return nil
}

// Resync implements [cache.ReflectorStore].
func (s namespaceStore) Resync() error { return nil }
