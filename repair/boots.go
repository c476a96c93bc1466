package repair

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/budget"
)

// boots has the budgets of pods that broke because the plugin was missing from the node's network for a while, as after a boot.
type boots struct {
	putBack func() time.Time

	mu     sync.Mutex
	at     time.Time // when the plugin was put back, for which the groups are
	groups *budget.Groups
}

// explains reports whether a pod started before the plugin was put back. Only the kubelet says when; it does not change that over a boot.
func (b *boots) explains(pod *corev1.Pod) bool {
	if b.putBack == nil || pod.Status.StartTime == nil {
		return false
	}
	at := b.putBack()
	return !at.IsZero() && !pod.Status.StartTime.After(at)
}

// limits returns a namespace's budget for such pods, which is full after the plugin was put back once more.
func (b *boots) limits(namespace string) *budget.Group {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := b.putBack(); b.groups == nil || !at.Equal(b.at) {
		b.at, b.groups = at, budget.FullGroups(bootBudget)
	}
	return b.groups.Of(namespace)
}
