package nodepods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/internal/podlist"
	"github.com/meshcni/meshcni/internal/unheard"
)

// server is the API server, with the two kinds that are watched: a clientset would take several times the rest of the
// package in memory.
type server struct {
	core rest.Interface
	meta metadata.Interface
	keep func(*corev1.Pod) *corev1.Pod
}

func newServer(config *rest.Config, keep func(*corev1.Pod) *corev1.Pod) (*server, error) {
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := rest.RESTClientFor(c)
	return &server{core, meta, keep}, err
}

// watchPods keeps the store like the node's pods until the context ends. Each pod loses what is not kept before the next is read: a
// node's pods may be a thousand times larger than what is kept of them.
func (s *server) watchPods(ctx context.Context, node string, store cache.ReflectorStore, failed func(error)) {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	reflect(ctx, &corev1.Pod{}, store, failed,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			body, err := s.core.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec).Stream(ctx)
			if err != nil {
				return nil, err
			}
			defer func() { _ = body.Close() }()
			list, err := podlist.Decode(body, s.keep)
			if err != nil {
				return nil, fmt.Errorf("read the list of the node's pods: %w", err)
			}
			return list, nil
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.Watch = selector, true
			w, err := s.core.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
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
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	namespaces := s.meta.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	reflect(ctx, &metav1.PartialObjectMetadata{}, store, failed,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return namespaces.List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return namespaces.Watch(ctx, o)
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
