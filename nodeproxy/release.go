package nodeproxy

import (
	"context"
	"fmt"

	"github.com/meshcni/meshcni/plugin/agentsock"
)

// awaitStart waits until the node's pods are known.
func (c *Controller) awaitStart(ctx context.Context) error {
	select {
	case <-c.started:
		return nil
	default:
	}
	select {
	case <-c.started:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotSynced, context.Cause(ctx))
	}
}

// Release takes all pods out of the proxy's care, before the agent goes for good, and returns those that it could not take
// out before the context ended. From then on the controller captures none.
func (c *Controller) Release(ctx context.Context) ([]agentsock.PodState, error) {
	if err := c.awaitStart(ctx); err != nil {
		return nil, err
	}
	c.releasing.Store(true)
	uids := c.uids()
	for _, uid := range uids {
		c.queue.Forget(uid) // no backoff from before
		c.queue.Add(uid)
	}
	for {
		c.mu.Lock()
		var left []agentsock.PodState
		for _, e := range c.entries {
			if e.state.State != agentsock.Outside { // also one that was not looked at yet
				left = append(left, e.state)
			}
		}
		changed := c.changed
		c.mu.Unlock()
		if len(left) == 0 {
			return nil, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return left, nil
		}
	}
}

// Snapshot returns the pods that a proxy which has just come is to have: those that are to be captured, and those that may
// still be. One whose namespace is not known has no NetNS, so that the proxy keeps it if it has it. It waits until the node's
// pods are known; otherwise the error is that of the context. A NetNS is closed when the pod is given back.
func (c *Controller) Snapshot(ctx context.Context) (pods []Workload, err error) {
	if err := c.awaitStart(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.shared {
			pods = append(pods, e.share)
		}
	}
	return pods, nil
}
