// Package streamtest makes probes while a test replaces rules, to show that none escapes.
package streamtest

import (
	"sync"
	"testing"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// width is how many probes a stream makes at once.
const width = 4

// Start makes one probe over and over, a few at a time, and counts the fates. The first few have ended when it returns. stop makes a
// few more and returns how often each fate was met; it may be called again and returns the same counts.
//
// Begin with rules in place that track connections, as any NAT rule does. The first such rule in a namespace also affects
// half-open connections, whose later packets then take another way than their first: "reset" or "timeout".
func Start(tb testing.TB, w *netnstest.World, p netnstest.Probe) (stop func() map[string]int) {
	tb.Helper()
	counts := map[string]int{}
	round := func() {
		var fates [width]string
		var all sync.WaitGroup
		for i := range fates {
			all.Go(func() { fates[i] = w.Run([]netnstest.Probe{p})[p.String()] })
		}
		all.Wait()
		for _, fate := range fates {
			counts[fate]++
		}
	}
	round()
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			round()
			select {
			case <-stopping:
				round()
				return
			default:
			}
		}
	}()
	stop = sync.OnceValue(func() map[string]int {
		close(stopping)
		<-done
		return counts
	})
	tb.Cleanup(func() { stop() })
	return stop
}
