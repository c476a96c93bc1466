//go:build linux

package nodeagent

import (
	"context"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/internal/node/api"
)

// policies watches the chart's policy for evictions and its binding, of which it knows the metadata alone: each change of what they say has a
// generation of its own.
type policies struct {
	name    string
	changed func() // either has, or is not watched any more

	watched []*watchedPolicy
}

type watchedPolicy struct {
	cache.SharedInformer
	cache.ResourceEventHandlerRegistration

	mu  sync.Mutex
	why error // it may not be watched
}

// evictionPolicy is the chart's name of both, which follows that of the DaemonSet.
func (s Config) evictionPolicy() string {
	return s.Identity.Program("agent-evictions") + strings.TrimPrefix(s.DaemonSetName, s.Identity.WithDefaults().Agent)
}

// watchPolicies watches until the context ends.
func watchPolicies(ctx context.Context, client *api.Client, name string, changed func()) (*policies, error) {
	p := &policies{name: name, changed: changed}
	for _, kind := range []schema.GroupVersionResource{api.Policies, api.PolicyBindings} {
		w := &watchedPolicy{}
		w.SharedInformer = cache.NewSharedInformer(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.ListOne(ctx, kind, "", name, o)
				p.note(w, kind.Resource, err)
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				events, err := client.WatchOne(ctx, kind, "", name, o)
				p.note(w, kind.Resource, err)
				return events, err
			},
		}, &metav1.PartialObjectMetadata{}, 0)
		_ = w.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}) // they are noted
		var err error
		w.ResourceEventHandlerRegistration, err = w.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() }, UpdateFunc: func(was, is any) {
				if revision(was) != revision(is) {
					changed()
				}
			},
		})
		if err != nil {
			return nil, err
		}
		p.watched = append(p.watched, w)
		go w.RunWithContext(ctx)
	}
	return p, nil
}

// revision identifies what an object says.
func revision(o any) [2]any {
	m := o.(*metav1.PartialObjectMetadata)
	return [2]any{m.UID, m.Generation}
}

// note notes whether a request was refused. One that was not answered says nothing.
func (p *policies) note(w *watchedPolicy, resource string, err error) {
	refused := apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
	if err != nil && !refused {
		return
	}
	w.mu.Lock()
	news := refused != (w.why != nil)
	w.why = nil
	if refused {
		w.why = unconfined("the agent cannot watch %s %s, by which it may evict pods of its own node only: %v", resource, p.name, err)
	}
	w.mu.Unlock()
	if news {
		p.changed()
	}
}

// check waits until both are watched, and returns nil if they are there.
func (p *policies) check(ctx context.Context) error {
	var why error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		listed := true
		for _, w := range p.watched {
			w.mu.Lock()
			why = w.why
			w.mu.Unlock()
			if why != nil {
				return true, nil
			}
			listed = listed && w.ResourceEventHandlerRegistration.HasSynced()
		}
		return listed, nil
	})
	if err != nil || why != nil {
		if why == nil {
			why = errNotListed
		}
		return why
	}
	for _, w := range p.watched {
		if len(w.GetStore().ListKeys()) == 0 {
			return errNoPolicy
		}
	}
	return nil
}
