package nodeproxy_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/redirect/apply"
)

// nodePods is the kubelet's default for the most pods of a node (max-pods).
const nodePods = 110

// cpuTime is the processor time of this process and of its children that have ended, which a busy machine does not change.
func cpuTime(b *testing.B) (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// BenchmarkEnrol is the label of a namespace with all of a node's pods: from the label until the last is captured, and back.
func BenchmarkEnrol(b *testing.B) {
	for _, backend := range []apply.Name{apply.Nftables, apply.IptablesNFT} {
		b.Run(fmt.Sprintf("%s/pods=%d", backend, nodePods), func(b *testing.B) {
			n := newNode(b, backend)
			n.options = func(o *nodeproxy.Options) { o.VerifyInterval = -1 }
			for i := range nodePods {
				n.pod(i)
			}
			n.start()
			all := func(state agentsock.State) {
				n.until("all "+string(state), func() bool {
					states := n.c.Pods()
					return len(states) == nodePods && !slices.ContainsFunc(states, func(p agentsock.PodState) bool { return p.State != state })
				})
			}
			all(agentsock.Outside)
			var spent time.Duration
			defer func() { b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "cpu-ms/op") }()
			for b.Loop() {
				begin := cpuTime(b)
				n.pods.label("shop", "ambient")
				all(agentsock.Captured)
				spent += cpuTime(b) - begin
				b.StopTimer()
				n.pods.label("shop", "")
				all(agentsock.Outside)
				b.StartTimer()
			}
		})
	}
}
