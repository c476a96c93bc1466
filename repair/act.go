package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// act does the action on a pod that was just read, and verifies it.
func (c *Controller) act(ctx context.Context, pod *corev1.Pod) result {
	switch c.Action {
	case ActionLabel:
		return c.label(ctx, pod)
	case ActionDelete:
		return c.remove(ctx, pod)
	case ActionRepair:
		return c.mend(ctx, pod)
	case ActionNone:
	}
	return result{}
}

func (c *Controller) label(ctx context.Context, pod *corev1.Pod) result {
	key, value, outcome := c.Criteria.HandledLabel, c.Criteria.HandledValue, OutcomeLabelled
	f := Diagnose(pod, c.Criteria)
	if !f.Broken {
		value, outcome = "", OutcomeUnlabelled
	}
	got, err := c.Cluster.Label(ctx, RefTo(pod), key, value)
	switch {
	case err != nil:
		return c.failed(fmt.Errorf("label pod: %w", err))
	case got.UID != pod.UID || got.Labels[key] != value:
		return result{outcome: OutcomeUnverified, reason: "no-label", detail: "the server took the label and does not show it", retry: true}
	}
	return result{outcome: outcome, reason: string(f.Reason), detail: fmt.Sprintf("%s: %s", key+"="+value, f.Detail)}
}

// blockedWait is when to try again an eviction that a disruption budget forbids;
// budgets change as pods get well, about which nothing tells us.
const blockedWait = 15 * time.Second

func (c *Controller) remove(ctx context.Context, pod *corev1.Pod) result {
	// Before: a successor may be seen before the answer is.
	outcome, seen, now := OutcomeEvicted, c.tracks.get(pod.UID).seen, time.Now()
	err := c.Cluster.Evict(ctx, RefTo(pod))
	if apierrors.IsTooManyRequests(err) {
		if !c.Force {
			wait := blockedWait
			if s, ok := apierrors.SuggestsClientDelay(err); ok {
				wait = max(wait, time.Duration(s)*time.Second)
			}
			return result{outcome: OutcomeBlocked, reason: "disruption-budget", detail: words(err), wait: wait}
		}
		outcome = OutcomeDeleted
		err = c.Cluster.Delete(ctx, RefTo(pod))
	}
	if err != nil {
		return c.failed(fmt.Errorf("delete pod: %w", err))
	}
	c.lineage.deleted(pod, seen, now)
	f := Diagnose(pod, c.Criteria)
	left, err := c.Cluster.Pod(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && (left.UID != pod.UID || left.DeletionTimestamp != nil):
		return result{outcome: outcome, reason: string(f.Reason), detail: f.Detail}
	case err != nil:
		return result{outcome: OutcomeUnverified, reason: codeOf(err), detail: fmt.Sprintf("deleted, but reading the pod again fails: %v", err), retry: true}
	}
	return result{outcome: OutcomeUnverified, reason: "not-deleting", detail: "the server took the deletion and the pod stays", retry: true}
}

func (c *Controller) mend(ctx context.Context, pod *corev1.Pod) result {
	f := Diagnose(pod, c.Criteria)
	changed, err := c.Mender.Apply(ctx, pod)
	if err != nil {
		return mendFailed(err)
	}
	diffs, err := c.Mender.Check(ctx, pod)
	if err != nil {
		return mendFailed(fmt.Errorf("verify: %w", err))
	}
	if len(diffs) > 0 {
		return result{outcome: OutcomeUnverified, reason: "rules-differ", detail: summary(diffs), retry: true}
	}
	again := false
	c.tracks.change(pod.UID, func(t *track) {
		t.repaired = time.Now()
		t.times++
		again = t.times > 1
	})
	switch {
	case !changed && again:
		return result{outcome: OutcomeIneffective, reason: "fails-again", detail: "the rules are there, and yet: " + f.Detail}
	case !changed:
		return result{outcome: OutcomeIntact, reason: string(f.Reason), detail: "the rules are there; the pod's check has yet to run again"}
	}
	return result{outcome: OutcomeRepaired, reason: string(f.Reason), detail: f.Detail}
}

func mendFailed(err error) result {
	r := result{outcome: OutcomeFailed, reason: "error", detail: words(err), retry: true}
	switch {
	case errors.Is(err, ErrNoProcess):
		r.outcome, r.reason = OutcomeNoProcess, "no-process"
	case errors.Is(err, ErrVariant):
		r.reason = "variant"
	case errors.Is(err, ErrRefused):
		r.reason = "pod-refused"
	case errors.Is(err, context.DeadlineExceeded):
		r.reason = "timeout"
	}
	return r
}

// summary names the first differences.
func summary(diffs []ruleset.Difference) string {
	const most = 3
	s := fmt.Sprintf("%d rules differ:", len(diffs))
	for i, d := range diffs {
		if i == most {
			return s + " …"
		}
		s += " " + d.String() + ";"
	}
	return s[:len(s)-1]
}

// eventReasons name the outcomes in Kubernetes events; an outcome without is no event.
var eventReasons = map[Outcome]struct{ kind, reason string }{
	OutcomeFound:       {corev1.EventTypeWarning, "MeshRedirectionMissing"},
	OutcomeLabelled:    {corev1.EventTypeWarning, "MeshRepairLabelled"},
	OutcomeUnlabelled:  {corev1.EventTypeNormal, "MeshRepairUnlabelled"},
	OutcomeEvicted:     {corev1.EventTypeWarning, "MeshRepairEvicted"},
	OutcomeDeleted:     {corev1.EventTypeWarning, "MeshRepairDeleted"},
	OutcomeRepaired:    {corev1.EventTypeNormal, "MeshRepairRepaired"},
	OutcomeIntact:      {corev1.EventTypeNormal, "MeshRepairIntact"},
	OutcomeRecovered:   {corev1.EventTypeNormal, "MeshRepairRecovered"},
	OutcomeIneffective: {corev1.EventTypeWarning, "MeshRepairIneffective"},
	OutcomeTooLate:     {corev1.EventTypeWarning, "MeshRepairTooLate"},
	OutcomeMended:      {corev1.EventTypeNormal, "MeshRepairNotNeeded"},
	OutcomeDeferred:    {corev1.EventTypeNormal, "MeshRepairDeferred"},
	OutcomeHeld:        {corev1.EventTypeWarning, "MeshRepairHeld"},
	OutcomeBlocked:     {corev1.EventTypeWarning, "MeshRepairBlocked"},
	OutcomeSpared:      {corev1.EventTypeWarning, "MeshRepairSpared"},
	OutcomeNoProcess:   {corev1.EventTypeWarning, "MeshRepairNoProcess"},
	OutcomeUnverified:  {corev1.EventTypeWarning, "MeshRepairUnverified"},
	OutcomeFailed:      {corev1.EventTypeWarning, "MeshRepairFailed"},
}

// done are the outcomes that are news each time.
var done = map[Outcome]bool{
	OutcomeLabelled: true, OutcomeUnlabelled: true, OutcomeEvicted: true, OutcomeDeleted: true, OutcomeRepaired: true,
}

// report makes an outcome known, once while one that is waited out stays the same
// for a pod. The pods that went away, and the attempts that lost a race, are counted and logged only:
// there is nothing for anyone to look at.
func (c *Controller) report(pod *corev1.Pod, r result) {
	known := false
	c.tracks.change(pod.UID, func(t *track) {
		known = t.outcome == r.outcome && t.reason == r.reason
		t.outcome, t.reason = r.outcome, r.reason
	})
	if known && !done[r.outcome] {
		return
	}
	c.metrics.outcomes.WithLabelValues(string(c.Action), string(r.outcome), r.reason).Inc()
	c.Log.Info("broken pod", "namespace", pod.Namespace, "pod", pod.Name, "uid", string(pod.UID),
		"action", string(c.Action), "outcome", string(r.outcome), "reason", r.reason, "detail", r.detail)
	if e, ok := eventReasons[r.outcome]; ok {
		c.event(pod, e.kind, e.reason, r.detail)
	}
}

// objectRef names the pod to events.
func objectRef(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}
