package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// result is what came of one attempt at a pod.
type result struct {
	outcome Outcome
	reason  string
	detail  string
	// wait is when to come again; retry is to come again with growing waits.
	wait  time.Duration
	retry bool
}

// process deals with one pod. It returns when to come again, if at all.
func (c *Controller) process(ctx context.Context, key types.NamespacedName) (wait time.Duration, retry bool) {
	pod := c.pod(key)
	if pod == nil {
		return 0, false
	}
	f := Diagnose(pod, c.Criteria)
	switch {
	case c.stale(pod, f), c.comesAlive(pod, f):
	case !f.Broken:
		c.settled(pod, f)
		return 0, false
	case c.Action == ActionNone:
		c.report(pod, result{outcome: OutcomeFound, reason: string(f.Reason), detail: f.Detail})
		return 0, false
	}
	if wait := c.suspended(); wait > 0 {
		return wait, false
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	r := c.attempt(ctx, pod, f)
	if r.outcome != "" {
		c.report(pod, r)
	}
	return r.wait, r.retry
}

// stale reports whether a pod still carries the label although it is well.
func (c *Controller) stale(pod *corev1.Pod, f Finding) bool {
	well := f.Reason == CheckPassed || f.Reason == Recovered
	return c.Action == ActionLabel && well && c.Criteria.HandledLabel != "" && pod.Labels[c.Criteria.HandledLabel] == c.Criteria.HandledValue
}

// comesAlive reports whether a pod that had no process to find its namespace by is
// running its check: without a pause process that is the time to repair it.
func (c *Controller) comesAlive(pod *corev1.Pod, f Finding) bool {
	return c.Action == ActionRepair && f.Reason == Checking && c.tracks.get(pod.UID).outcome == OutcomeNoProcess
}

// settled notes that a repaired pod has got well.
func (c *Controller) settled(pod *corev1.Pod, f Finding) {
	t := c.tracks.get(pod.UID)
	if f.Reason == Recovered && !t.repaired.IsZero() && t.outcome != OutcomeRecovered {
		c.report(pod, result{outcome: OutcomeRecovered, reason: string(f.Reason), detail: f.Detail})
	}
}

// attempt holds back, re-reads, acts.
func (c *Controller) attempt(ctx context.Context, cached *corev1.Pod, f Finding) result {
	if r, out := c.before(cached, f); out {
		return r
	}
	// Without a token the pod is not even read.
	if wait, _ := c.budget.Take(ctx); wait > 0 {
		return result{outcome: OutcomeDeferred, reason: "node-budget", detail: fmt.Sprintf("this node's budget allows the next action in %s", wait.Round(100*time.Millisecond)), wait: wait}
	}
	acted := false
	defer func() {
		if !acted {
			_ = c.budget.Return(ctx) // never fails
		}
	}()
	start := time.Now()
	fresh, r, ok := c.reread(ctx, cached)
	if !ok {
		return r
	}
	if c.Action == ActionDelete && c.ClusterBudget != nil {
		wait, err := c.ClusterBudget.Take(ctx)
		if err != nil {
			return c.failed(err)
		}
		if wait > 0 {
			return result{outcome: OutcomeDeferred, reason: "cluster-budget", detail: fmt.Sprintf("the cluster's budget allows the next deletion in %s", wait.Round(100*time.Millisecond)), wait: wait}
		}
	}
	acted = true
	r = c.act(ctx, fresh)
	c.metrics.duration.WithLabelValues(string(c.Action)).Observe(time.Since(start).Seconds())
	if r.outcome == OutcomeBlocked || r.outcome == OutcomeConflict {
		acted = false // nothing was done to the pod
		if c.Action == ActionDelete && c.ClusterBudget != nil {
			_ = c.ClusterBudget.Return(ctx) // a token lost only slows the pace
		}
	}
	return r
}

// before tells, without asking anybody, why a pod is not acted on now.
func (c *Controller) before(pod *corev1.Pod, f Finding) (result, bool) {
	switch c.Action {
	case ActionRepair:
		if f.Final {
			return result{outcome: OutcomeTooLate, reason: string(f.Reason), detail: "the pod has failed for good, so rules cannot help it; delete it"}, true
		}
		t := c.tracks.get(pod.UID)
		if t.repaired.IsZero() {
			return result{}, false
		}
		// Times in a status are whole seconds, cut off.
		if !f.FailedAt.After(t.repaired) {
			return result{}, true // the check has not run since
		}
		if t.times >= maxRepairs {
			return result{outcome: OutcomeIneffective, reason: "gave-up", detail: fmt.Sprintf("the check fails although the rules were put there %d times", t.times)}, true
		}
	case ActionDelete:
		if _, owned := ownerOf(pod); c.SpareUnmanaged && !owned {
			return result{outcome: OutcomeSpared, reason: "unmanaged", detail: "nothing would make the pod anew"}, true
		}
		now := time.Now()
		h := c.lineage.check(pod, c.tracks.get(pod.UID).seen, now)
		if h == nil {
			h = c.Breaker.check(c.count(), now)
			c.metrics.setBreaker(h)
		}
		if h != nil {
			return result{outcome: OutcomeHeld, reason: h.code, detail: h.detail, wait: h.wait}, true
		}
	case ActionNone, ActionLabel:
	}
	return result{}, false
}

// maxRepairs is how often a pod's rules are put there although its check goes on failing.
const maxRepairs = 5

// reread reads the pod from the server and diagnoses it again.
func (c *Controller) reread(ctx context.Context, cached *corev1.Pod) (*corev1.Pod, result, bool) {
	fresh, err := c.Cluster.Pod(ctx, cached.Namespace, cached.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, result{outcome: OutcomeGone, reason: "not-found", detail: "the pod is away"}, false
	case err != nil:
		return nil, c.failed(fmt.Errorf("read pod: %w", err)), false
	case fresh.UID != cached.UID:
		// The informer will tell about the other one, if that is broken too.
		return nil, result{outcome: OutcomeReplaced, reason: "other-uid", detail: fmt.Sprintf("another pod has the name: UID %s", fresh.UID)}, false
	case fresh.Spec.NodeName != c.Node:
		return nil, result{outcome: OutcomeReplaced, reason: "other-node", detail: "the pod is on node " + fresh.Spec.NodeName}, false
	}
	f := Diagnose(fresh, c.Criteria)
	switch {
	case f.Broken, c.stale(fresh, f), c.comesAlive(fresh, f):
		return fresh, result{}, true
	case f.Reason == Deleting:
		return nil, result{outcome: OutcomeGone, reason: string(f.Reason), detail: f.Detail}, false
	}
	return nil, result{outcome: OutcomeMended, reason: string(f.Reason), detail: f.Detail}, false
}

// failed judges an error of the API server.
func (c *Controller) failed(err error) result {
	switch {
	case apierrors.IsForbidden(err):
		if !c.refused(err) { // an admission policy, say, that has something against this pod
			return result{outcome: OutcomeFailed, reason: "refused", detail: words(err), retry: true}
		}
		return result{outcome: OutcomeForbidden, reason: "forbidden", detail: words(err), wait: askAgain}
	case apierrors.IsConflict(err):
		return result{outcome: OutcomeConflict, reason: "conflict", detail: words(err), retry: true}
	case apierrors.IsNotFound(err):
		return result{outcome: OutcomeGone, reason: "not-found", detail: "the pod went away meanwhile"}
	}
	return result{outcome: OutcomeFailed, reason: codeOf(err), detail: words(err), retry: true}
}

// codeOf is a short code for an error, for metrics.
func codeOf(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return "timeout"
	case apierrors.IsUnauthorized(err):
		return "unauthorized"
	case apierrors.IsTooManyRequests(err):
		return "too-many-requests"
	case apierrors.ReasonForError(err) != "":
		return "api-error"
	}
	return "error"
}
