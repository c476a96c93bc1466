package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// slowLook bounds the time for which a pod's namespace may keep a worker whom other pods wait for. A look takes some milliseconds, and is slow only if
// the pod has filled its namespace. What is not done by then is done in the lane of slow pods, within attemptTimeout.
const slowLook = time.Second

// errSlow: a look was ended after slowLook. Nothing is concluded from it.
var errSlow = errors.New("the pod's network namespace takes long")

// look calls the Redirector. At most as many at a time do so as places has room for.
func look[T any](ctx context.Context, places chan struct{}, fn func(context.Context, *corev1.Pod) (T, error), pod *corev1.Pod) (result T, err error) {
	v := keeper.VisitOf(ctx)
	if v == nil {
		return fn(ctx, pod)
	}
	looking, cancel := ctx, func() {}
	if !v.Slow {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return result, context.Cause(ctx)
		}
		looking, cancel = context.WithTimeoutCause(ctx, slowLook, errSlow)
	}
	defer cancel()
	begin := time.Now()
	result, err = fn(looking, pod)
	v.Since(begin)
	if err != nil && errors.Is(context.Cause(looking), errSlow) {
		v.Cut()
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	return result, err
}

func (c *Controller) check(ctx context.Context, pod *corev1.Pod) ([]ruleset.Difference, error) {
	return look(ctx, c.looks, c.redirector.Check, pod)
}

func (c *Controller) apply(ctx context.Context, pod *corev1.Pod) (apply.Result, error) {
	return look(ctx, c.looks, c.redirector.Apply, pod)
}
