package plugin

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// presumable reports whether the pod may pass if it cannot be read: by the runtime's word it has none of the
// annotations that the mesh's injector always leaves.
func (c *call) presumable(policy selection.Policy) bool {
	_, out := policy.PresumeOut(c.config.Annotations)
	return out
}

// passUnread lets a pod through that could not be read because of the failure, if it is presumable; else it returns
// the failure. Without it a node whose credentials are missing starts nothing: not the network's pods, not the storage
// of the pods that would bring the credentials. That there is no such pod, or another one, is an answer, and no reason to
// pass one.
func (c *call) passUnread(ctx context.Context, policy selection.Policy, failure *types.Error) *types.Error {
	decision, out := policy.PresumeOut(c.config.Annotations)
	if !out || !c.unread || errors.Is(ctx.Err(), context.Canceled) {
		return failure
	}
	decision.Warnings = append(decision.Warnings, redirect.Warningf(redirect.WarningFallback, "",
		"the pod could not be read, so its annotations decide: %s", failure.Msg))
	c.decide(decision)
	c.event.outcome = "passed"
	return nil
}
