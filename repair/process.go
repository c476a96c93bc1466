package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// maxRepairs bounds the writes of a pod's rules while its check keeps failing.
const maxRepairs = 5

// result is the end of one attempt. A zero outcome is not reported.
type result struct {
	outcome status.Code
	reason  status.Code
	detail  string
	// wait is the time until the next try; retry means to try again with growing waits.
	wait  time.Duration
	retry bool
}

func (r result) next() keeper.Next { return keeper.Next{After: r.wait, Retry: r.retry} }

// resultOf returns the result of a pod with the finding.
func resultOf(outcome status.Code, f Finding) result {
	return result{outcome: outcome, reason: f.Reason, detail: f.Detail}
}

// process deals with one pod, and verifies its rules if it is due. It returns when to come back, if at all.
func (c *Controller) process(ctx context.Context, v *keeper.Visit) keeper.Next {
	pod := c.pod(v.UID)
	if pod == nil {
		return keeper.Next{}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	next := c.deal(ctx, pod)
	due := false
	c.note(pod, func(t *track) { due, t.due = t.due, false })
	if due && c.shouldHaveRules(pod) {
		c.verify(ctx, pod)
	}
	if due && v.WasCut() {
		c.note(pod, func(t *track) { t.due = true })
	}
	return next
}

// deal diagnoses a pod, and acts on it if it is broken.
func (c *Controller) deal(ctx context.Context, pod *corev1.Pod) keeper.Next {
	unknown := c.undecided(pod)
	c.observe(pod)
	f := c.diagnose(pod)
	if f.Broken && unknown != nil {
		r := c.failed(unknown)
		c.report(pod, r)
		return r.next()
	}
	switch {
	case c.staleLabel(pod, f), c.comesAlive(pod, f):
	case !f.Broken:
		t := c.track(pod)
		if f.Reason == statuscode.Recovered && !t.repaired.IsZero() && t.outcome != statuscode.Recovered {
			c.report(pod, resultOf(statuscode.Recovered, f))
		}
		return keeper.Next{}
	case c.opts.Action == ActionNone:
		c.report(pod, resultOf(statuscode.Found, f))
		return keeper.Next{}
	}
	if wait := c.suspended(); wait > 0 {
		return keeper.Next{After: wait}
	}
	r := c.attempt(ctx, pod, f)
	if r.outcome != "" {
		c.report(pod, r)
	}
	return r.next()
}

// staleLabel reports whether a healthy pod still has the label.
func (c *Controller) staleLabel(pod *corev1.Pod, f Finding) bool {
	healthy := f.Reason == statuscode.CheckPassed || f.Reason == statuscode.Recovered
	return c.opts.Action == ActionLabel && healthy && c.criteria(pod).handled(pod)
}

// comesAlive reports whether a pod whose network namespace nothing showed now runs its check. Where nobody names it, without a pause process this is the
// only time to repair it.
func (c *Controller) comesAlive(pod *corev1.Pod, f Finding) bool {
	return c.opts.Action == ActionRepair && f.Reason == statuscode.Checking && c.track(pod).outcome == statuscode.NoProcess
}

// attempt checks whether the pod may be acted on now, reads it again, and acts.
func (c *Controller) attempt(ctx context.Context, cached *corev1.Pod, f Finding) result {
	if r, out := c.before(cached, f); out {
		return r
	}
	// Without a token, the pod is not even read.
	if wait := c.turn(cached); wait > 0 {
		r := result{wait: wait}
		if wait >= longWait {
			r.outcome, r.reason = statuscode.Deferred, statuscode.NodeBudget
			r.detail = fmt.Sprintf("the namespace's budget on the node allows this action in %s", wait.Round(time.Second))
		}
		return r
	}
	start := time.Now()
	fresh, r, ok := c.reread(ctx, cached)
	if !ok {
		c.keeper.GiveBack(cached.Namespace)
		return r
	}
	r = c.act(ctx, fresh)
	c.metrics.duration.WithLabelValues(string(c.opts.Action)).Observe(time.Since(start).Seconds())
	if r.outcome == "" || r.outcome == statuscode.Blocked || r.outcome == statuscode.Conflict { // nothing was done to the pod
		c.keeper.GiveBack(cached.Namespace)
	}
	return r
}

// longWait is the wait for a budget that is worth a report.
const longWait = time.Minute

// turn returns how long a pod has to wait for its namespace's budget, and takes its turn once that has come.
func (c *Controller) turn(pod *corev1.Pod) (wait time.Duration) {
	c.note(pod, func(t *track) {
		if t.turn.IsZero() {
			t.turn = c.keeper.Turn(pod.Namespace)
		}
		if wait = time.Until(t.turn); wait <= 0 {
			t.turn = time.Time{}
		}
	})
	return wait
}

// before returns why a pod is not acted on now, as far as that is known without a request.
func (c *Controller) before(pod *corev1.Pod, f Finding) (r result, out bool) {
	t := c.track(pod)
	switch c.opts.Action {
	case ActionRepair:
		switch {
		case f.Final:
			r = resultOf(statuscode.TooLate, f)
			r.detail = "the pod has failed for good, so rules cannot help it; delete it"
			return r, true
		case t.repaired.IsZero():
			return result{}, false
		case !f.FailedAt.After(t.repaired): // the check has not run since; times in a status are truncated to seconds
			return result{}, true
		case t.times >= maxRepairs:
			return result{outcome: statuscode.Ineffective, reason: statuscode.GaveUp, detail: fmt.Sprintf("the check fails although the rules were written %d times", t.times)}, true
		}
	case ActionDelete:
		if _, owned := ownerOf(pod); c.opts.SpareUnmanaged && !owned {
			return result{outcome: statuscode.Spared, reason: statuscode.Unmanaged, detail: "nothing would replace the pod"}, true
		}
		h := c.lineage.check(pod, t.seen, time.Now())
		if h == nil {
			h = c.holds.check()
			c.metrics.setHeld(c.holds.holding(true))
		}
		if h != nil {
			return result{outcome: statuscode.Held, reason: h.reason, detail: h.detail, wait: h.wait}, true
		}
	case ActionNone, ActionLabel:
	}
	return result{}, false
}

// reread reads the pod from the server and diagnoses it again. If the pod is not to be acted on, it returns a result.
func (c *Controller) reread(ctx context.Context, cached *corev1.Pod) (*corev1.Pod, result, bool) {
	fresh, err := c.cluster.Pod(ctx, cached.Namespace, cached.Name)
	switch {
	case err != nil:
		return nil, c.failed(fmt.Errorf("read pod: %w", err)), false
	case fresh.UID != cached.UID: // the informer reports the other one, if that is broken too
		return nil, result{outcome: statuscode.Replaced, reason: statuscode.OtherUID, detail: fmt.Sprintf("another pod has the name: UID %s", fresh.UID)}, false
	case fresh.Spec.NodeName != c.opts.Node:
		return nil, result{outcome: statuscode.Replaced, reason: statuscode.OtherNode, detail: "the pod is on node " + fresh.Spec.NodeName}, false
	}
	if err := c.undecided(fresh); err != nil {
		return nil, c.failed(err), false
	}
	f := c.diagnose(fresh)
	switch {
	case f.Broken, c.staleLabel(fresh, f), c.comesAlive(fresh, f):
		return fresh, result{}, true
	case f.Reason == statuscode.Deleting:
		return nil, resultOf(statuscode.Gone, f), false
	}
	return nil, resultOf(statuscode.Mended, f), false
}

// failed returns the result of an error from the API server.
func (c *Controller) failed(err error) result {
	switch {
	case apierrors.IsForbidden(err):
		if !c.refused(err) { // for example, an admission policy refuses this pod
			return result{outcome: statuscode.Failed, reason: status.CodeRefused, detail: words(err), retry: true}
		}
		return result{outcome: statuscode.Forbidden, reason: statuscode.Forbidden, detail: words(err), wait: askAgain}
	case apierrors.IsConflict(err):
		return result{outcome: statuscode.Conflict, reason: statuscode.Conflict, detail: words(err), retry: true}
	case apierrors.IsNotFound(err):
		return result{outcome: statuscode.Gone, reason: statuscode.NotFound, detail: "the pod is gone"}
	}
	return result{outcome: statuscode.Failed, reason: codeOf(err), detail: words(err), retry: true}
}

// codeOf returns a short code for an error, for metrics.
func codeOf(err error) status.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return statuscode.Timeout
	case apierrors.IsUnauthorized(err):
		return statuscode.Unauthorized
	case apierrors.IsTooManyRequests(err):
		return statuscode.TooManyRequests
	case apierrors.ReasonForError(err) != "":
		return statuscode.APIError
	}
	return statuscode.Error
}
