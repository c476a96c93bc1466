package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// blockedWait is the wait before an eviction is tried again that a disruption budget forbids. Nothing tells when the budget allows it.
const blockedWait = 15 * time.Second

// act takes the action on a pod that was just read, and verifies its effect.
func (c *Controller) act(ctx context.Context, pod *corev1.Pod) result {
	f := c.diagnose(pod)
	switch c.opts.Action {
	case ActionLabel:
		return c.label(ctx, pod, f)
	case ActionDelete:
		return c.evict(ctx, pod, f)
	case ActionRepair:
		return c.redirect(ctx, pod, f)
	case ActionNone:
	}
	return result{}
}

func (c *Controller) label(ctx context.Context, pod *corev1.Pod, f Finding) result {
	criteria := c.criteria(pod)
	key, value, outcome := criteria.HandledLabel, criteria.HandledValue, statuscode.Labelled
	if !f.Broken {
		value, outcome = "", statuscode.Unlabelled
	}
	got, err := c.cluster.Label(ctx, pod, key, value)
	switch {
	case err != nil:
		return c.failed(fmt.Errorf("label pod: %w", err))
	case got.UID != pod.UID || got.Labels[key] != value:
		return result{outcome: statuscode.Unverified, reason: statuscode.NoLabel, detail: "the server took the label and does not show it", retry: true}
	}
	return result{outcome: outcome, reason: f.Reason, detail: fmt.Sprintf("%s=%s: %s", key, value, f.Detail)}
}

func (c *Controller) evict(ctx context.Context, pod *corev1.Pod, f Finding) result {
	// A successor may show up before the answer does, so the time is taken first.
	outcome, seen, now := statuscode.Evicted, c.track(pod).seen, time.Now()
	err := c.cluster.Evict(ctx, pod)
	if apierrors.IsTooManyRequests(err) {
		if !c.opts.Force {
			wait := blockedWait
			if s, ok := apierrors.SuggestsClientDelay(err); ok {
				wait = max(wait, time.Duration(s)*time.Second)
			}
			return result{outcome: statuscode.Blocked, reason: statuscode.DisruptionBudget, detail: words(err), wait: wait}
		}
		outcome = statuscode.Deleted
		err = c.cluster.Delete(ctx, pod)
	}
	if err != nil {
		return c.failed(fmt.Errorf("delete pod: %w", err))
	}
	c.lineage.deleted(pod, seen, now)
	left, err := c.cluster.Pod(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && (left.UID != pod.UID || left.DeletionTimestamp != nil):
		return resultOf(outcome, f)
	case err != nil:
		return result{outcome: statuscode.Unverified, reason: codeOf(err), detail: "deleted, but reading the pod again fails: " + words(err), retry: true}
	}
	return result{outcome: statuscode.Unverified, reason: statuscode.NotDeleting, detail: "the server took the deletion and the pod stays", retry: true}
}

func (c *Controller) redirect(ctx context.Context, pod *corev1.Pod, f Finding) result {
	applied, left, err := c.write(ctx, pod)
	if errors.Is(err, errSlow) {
		c.note(pod, func(t *track) { t.wrote = t.wrote || applied.Changed })
		return result{} // there is another attempt, of which the outcome is reported
	}
	if err != nil {
		return redirectFailed(err)
	}
	if len(left) > 0 {
		return result{outcome: statuscode.Unverified, reason: statuscode.RulesDiffer, detail: summary(left), retry: true}
	}
	again := false
	c.note(pod, func(t *track) {
		applied.Changed = applied.Changed || t.wrote
		t.wrote = false
		t.repaired, t.verified = time.Now(), statuscode.Restored
		t.times++
		again = t.times > 1
	})
	c.observe(pod)
	r := resultOf(statuscode.Repaired, f)
	switch {
	case !applied.Changed && again:
		r = result{outcome: statuscode.Ineffective, reason: statuscode.FailsAgain, detail: "the rules are there, but: " + f.Detail}
	case !applied.Changed:
		r.outcome, r.detail = statuscode.Intact, "the rules are there; the pod's check has yet to run again"
	}
	r.detail += unusable(applied)
	return r
}

// write writes a pod's rules and returns what differs from them afterwards.
func (c *Controller) write(ctx context.Context, pod *corev1.Pod) (applied apply.Result, left []ruleset.Difference, err error) {
	if applied, err = c.apply(ctx, pod); err != nil {
		return applied, nil, err
	}
	if left, err = c.check(ctx, pod); err != nil {
		return applied, nil, fmt.Errorf("verify: %w", err)
	}
	return applied, ruleset.Certain(podrules.Without(left, applied.Left())), nil
}

// unusable describes the parts of a program that the namespace did not take; empty if it took all.
func unusable(applied apply.Result) (s string) {
	for _, u := range applied.Unusable {
		s += "; " + u.String()
	}
	return s
}

func redirectFailed(err error) result {
	r := result{outcome: statuscode.Failed, reason: statuscode.Error, detail: words(err), retry: true}
	switch {
	case errors.Is(err, ErrNoProcess):
		r.outcome, r.reason = statuscode.NoProcess, statuscode.NoProcess
	case errors.Is(err, ErrVariant):
		r.reason = statuscode.Variant
	case errors.Is(err, ErrRefused):
		r.reason = status.CodePodRefused
	case errors.Is(err, context.DeadlineExceeded):
		r.reason = statuscode.Timeout
	}
	return r
}

// summary lists the first differences.
func summary(diffs []ruleset.Difference) string {
	const most = 3
	var first []string
	for _, d := range diffs[:min(most, len(diffs))] {
		first = append(first, d.String())
	}
	s := fmt.Sprintf("%d rules differ: %s", len(diffs), strings.Join(first, "; "))
	if len(diffs) > most {
		s += "; …"
	}
	return s
}
