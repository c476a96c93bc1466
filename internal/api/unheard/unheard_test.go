package unheard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/internal/api/unheard"
)

// TestAMinute: a server that is away for less than a minute is no news; after that it is, once, until it answers.
func TestAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var watches unheard.Watches
		var server atomic.Pointer[error] // why it is away
		away := func() error {
			if why := server.Load(); why != nil {
				return *why
			}
			return nil
		}
		lw := unheard.ListWatch(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, away()
			},
			WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				if err := away(); err != nil {
					return nil, err
				}
				w := watch.NewFake()
				time.AfterFunc(time.Second, w.Stop)
				return w, nil
			},
		}, func(err error) { watches.Note("pods", err) })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		informer := cache.NewSharedInformer(lw, &corev1.Pod{}, 0)
		require.NoError(t, informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})) // the default's clock is no test's
		go informer.RunWithContext(ctx)
		why := func() error { return watches.Err(unheard.For, "the node's pods", "nobody knows") }
		time.Sleep(time.Minute)
		require.NoError(t, why())
		for range 2 {
			var since time.Time
			refused := errors.New("connection\nrefused")
			server.Store(&refused)
			for since.IsZero() {
				time.Sleep(time.Millisecond)
				if watches.Err(0, "", "") != nil {
					since = time.Now()
				}
			}
			time.Sleep(time.Until(since.Add(unheard.For - time.Second)))
			require.NoError(t, why())
			time.Sleep(3 * time.Second)
			require.ErrorContains(t, why(), "the API server has told nothing of the node's pods since ")
			require.ErrorContains(t, why(), "so nobody knows: watch pods: connection\nrefused")
			time.Sleep(time.Hour)
			server.Store(nil)
			time.Sleep(time.Minute)
			require.NoError(t, why())
		}
	})
}

// TestSinceTheFirst: of several watches the first that fails counts, and one that is over does not.
func TestSinceTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w unheard.Watches
		w.Note("b", nil)
		w.Note("b", errors.New("no"))
		time.Sleep(50 * time.Second)
		w.Note("a", errors.New("never"))
		time.Sleep(10 * time.Second)
		require.ErrorContains(t, w.Err(time.Minute, "x", "y"), ", so y: watch a: never\nwatch b: no")
		w.Note("b", nil)
		w.Note("a", nil)
		w.Note("a", errors.New("again"))
		require.NoError(t, w.Err(time.Minute, "x", "y"))
	})
}
