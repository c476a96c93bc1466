package repair_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/repair"
)

// TestPodsHeldAtTheGate: the containers of a pod that the plugin was not called for are refused at the runtime's hook, so its sandbox stays as it is
// and it never starts. It is evicted, as one that runs would be, so that it is made anew with the plugin; one that the hook or the plugin has captured by
// now, and whose containers wait for the kubelet's next attempt, is not.
func TestPodsHeldAtTheGate(t *testing.T) {
	held := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses = nil
		for _, c := range p.Spec.Containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CreateContainerError", Message: "the network's plugins have not set up its redirection",
			}}})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionDelete)(b, o)
			b.cluster.LeaveAtOnce = true
			o.Detect.Lost = &repair.Lost{Since: func() time.Time { return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) }}
			n.attach(b.pod("held"), "c1", "ptp", "portmap")
			n.attach(b.pod("captured"), "c3", "ptp", "portmap")
			n.record(b.pod("captured"), "c3", true)
		}, with(bare(t, "held"), held), with(bare(t, "captured"), held))
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]int{"evicted not-captured": 1}, b.outcomes())
		assert.Equal(t, map[string]int{"captured": 1}, states(b))
	})
}
