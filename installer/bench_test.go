//go:build linux

package installer

import (
	"runtime"
	"testing"
	"time"
)

// BenchmarkRepair is from an owner's rewrite to our entry in place again, by inotify.
func BenchmarkRepair(b *testing.B) {
	n := newNode(b, map[string]string{"10-calico.conflist": calicoList})
	a, _ := n.agent(func(o *Options) { o.Poll, o.Log = time.Hour, nil }, func(a *Agent) { a.contest.limit = 1 << 30 })
	within(b, patience, "ready", ready(a))
	for b.Loop() {
		n.put(n.conf("10-calico.conflist"), calicoList)
		for !n.captured() {
			runtime.Gosched()
		}
	}
}

// BenchmarkLook is what a turn of the loop costs when nothing has changed.
func BenchmarkLook(b *testing.B) {
	n := newNode(b, map[string]string{"10-calico.conflist": calicoList})
	n.install()
	obs := newObserver()
	b.ReportAllocs()
	for b.Loop() {
		if s := planInstall(n.Config, obs.look(n.Config)); len(s.actions) > 0 {
			b.Fatal(s.actions)
		}
	}
}
