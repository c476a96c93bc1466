package nodecontrol

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
)

const (
	// slowLook bounds the time of a run in a pod's namespace before the pod counts as slow, but at most half of [Options.Timeout]. A look
	// takes some milliseconds, and is slow only if the pod has filled its namespace.
	slowLook = time.Second
	// busyAgain is the wait before a further look at a pod that somebody else works on, such as an ADD of it.
	busyAgain = 50 * time.Millisecond
)

// bounds returns how long one attempt at a pod may take, and from which time in its namespace on it counts as slow.
func (o Options) bounds(types.UID) (attempt, look time.Duration) {
	return o.Timeout, min(slowLook, o.Timeout/2)
}

// timed is the effects of a run, with the time that it spends in the pod's namespace. A proxy or an API server that takes long makes no pod
// slow: it would make all so.
type timed struct {
	machine.Effects

	visit *keeper.Visit
}

// Observe implements [machine.Effects].
func (t *timed) Observe(ctx context.Context) (machine.Actual, error) {
	defer t.visit.Since(time.Now())
	return t.Effects.Observe(ctx)
}

// Do implements [machine.Effects].
func (t *timed) Do(ctx context.Context, act machine.Action) error {
	switch act {
	case machine.WriteRules, machine.DrainRules, machine.RemoveRules, machine.SetSysctl, machine.Forget:
		defer t.visit.Since(time.Now())
	default:
	}
	return t.Effects.Do(ctx, act)
}
