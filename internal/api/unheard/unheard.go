// Package unheard knows since when watches of the API server have been told nothing, so that a program that goes by what it heard before can
// say so.
package unheard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// For bounds the silence of the API server before that is news: client-go's longest wait between two attempts is half of it.
const For = time.Minute

// Watches are those of a program. The zero value has none that fails. Its methods are safe for concurrent use.
type Watches struct {
	mu      sync.Mutex
	failing map[string]error // by the watch's name
	since   time.Time        // when the first of them failed
}

// Note notes why a watch fails; nil: it does not, or is over.
func (w *Watches) Note(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.failing, name)
		return
	}
	if len(w.failing) == 0 {
		w.failing, w.since = map[string]error{}, time.Now()
	}
	w.failing[name] = err
}

// Err returns why watches fail, if one does for that long: unknown is what the program may not know, such as "of new pods".
func (w *Watches) Err(after time.Duration, what, unknown string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failing) == 0 || time.Since(w.since) < after {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(w.failing)) {
		errs = append(errs, fmt.Errorf("watch %s: %w", name, w.failing[name]))
	}
	return fmt.Errorf("the API server has told nothing of %s since %s, so %s: %w", what, w.since.UTC().Format(time.RFC3339), unknown, errors.Join(errs...))
}

// ListWatch returns lw, which notes the result of each of its requests.
func ListWatch(lw cache.ListerWatcher, note func(error)) cache.ListerWatcher {
	from := cache.ToListerWatcherWithContext(lw)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			found, err := from.ListWithContext(ctx, o)
			note(err)
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := from.WatchWithContext(ctx, o)
			// A server that cannot send what there is, is asked for a list instead; after these two errors the reflector goes on asking.
			if err == nil || o.SendInitialEvents == nil || utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
				note(err)
			}
			return w, err
		},
	}
}
