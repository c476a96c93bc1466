package repair

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// The results of a verification.
const (
	verifiedIntact    = "intact"
	verifiedDrifted   = "drifted"
	verifiedRestored  = "restored"
	verifiedNoProcess = "no-process"
	verifiedVariant   = "variant"
	verifiedRefused   = "refused"
	verifiedFailed    = "failed"
)

// verifyAll goes round the node's running captured pods for ever, evenly spread
// over the interval, so that it costs the same at any time.
func (c *Controller) verifyAll(ctx context.Context) {
	for {
		keys := c.captured()
		pause := c.VerifyInterval / time.Duration(max(1, len(keys)))
		if len(keys) == 0 && !sleep(ctx, pause) {
			return
		}
		for _, key := range keys {
			if !sleep(ctx, pause) {
				return
			}
			c.verify(ctx, key)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// captured are the pods whose rules should be there.
func (c *Controller) captured() (keys []types.NamespacedName) {
	for _, obj := range c.informer.GetStore().List() {
		if pod, ok := obj.(*corev1.Pod); ok && c.shouldHaveRules(pod) {
			keys = append(keys, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	return keys
}

// shouldHaveRules: running, in the mesh, and not known to be broken, which is the
// other half's business.
func (c *Controller) shouldHaveRules(pod *corev1.Pod) bool {
	if out, ok := leftOut(pod, c.Criteria); ok && out.Reason != "" {
		return false
	}
	if pod.Status.Phase != corev1.PodRunning || c.Criteria.Policy == nil {
		return false
	}
	// Not enabled by the pod itself: its namespace may do that, which the mender reads.
	if d := c.Criteria.Policy.Decide(pod, nil); !d.Selected && d.Reason != selection.NotEnabled {
		return false
	}
	return !Diagnose(pod, c.Criteria).Broken
}

// verify compares one pod's rules with the wanted ones. What the informer has of
// the pod is enough to find nothing; to find something, the pod is read again.
func (c *Controller) verify(ctx context.Context, key types.NamespacedName) {
	pod := c.pod(key)
	if pod == nil || !c.shouldHaveRules(pod) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	diffs, err := c.Mender.Check(ctx, pod)
	switch {
	case errors.Is(err, ErrNotSelected):
		return
	case err == nil && len(diffs) == 0:
		c.verified(pod, verifiedIntact, "")
		return
	}
	fresh, errRead := c.Cluster.Pod(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsNotFound(errRead):
		return
	case apierrors.IsForbidden(errRead):
		c.deny(errRead)
		return
	case errRead != nil:
		c.verified(pod, verifiedFailed, "read pod: "+words(errRead))
		return
	case fresh.UID != pod.UID || !c.shouldHaveRules(fresh):
		return
	}
	if diffs, err = c.Mender.Check(ctx, fresh); err != nil {
		c.verified(fresh, verifyFailed(err), words(err))
		return
	}
	if len(diffs) == 0 {
		c.verified(fresh, verifiedIntact, "")
		return
	}
	c.verified(fresh, verifiedDrifted, summary(diffs))
	if c.Action == ActionRepair {
		c.restore(ctx, fresh, diffs)
	}
}

func verifyFailed(err error) string {
	switch {
	case errors.Is(err, ErrNoProcess):
		return verifiedNoProcess
	case errors.Is(err, ErrVariant):
		return verifiedVariant
	case errors.Is(err, ErrRefused):
		return verifiedRefused
	}
	return verifiedFailed
}

// restore puts drifted rules back, within the node's budget. Without a token the
// next round does.
func (c *Controller) restore(ctx context.Context, pod *corev1.Pod, was []ruleset.Difference) {
	if wait, _ := c.budget.Take(ctx); wait > 0 {
		return
	}
	_, err := c.Mender.Apply(ctx, pod)
	var left []ruleset.Difference
	if err == nil {
		left, err = c.Mender.Check(ctx, pod)
	}
	switch {
	case err != nil:
		c.verified(pod, verifyFailed(err), words(err))
	case len(left) > 0:
		c.verified(pod, verifiedFailed, "put back, and still "+summary(left))
	default:
		c.verified(pod, verifiedRestored, "put back: "+summary(was))
	}
}

// verified makes a result known. Pods that stay as they were cost a count only.
func (c *Controller) verified(pod *corev1.Pod, result, detail string) {
	c.metrics.verified.WithLabelValues(result).Inc()
	was, same := false, false
	c.tracks.change(pod.UID, func(t *track) {
		was, same = t.drifted, t.verified == result
		t.verified = result
		switch result {
		case verifiedDrifted:
			t.drifted = true
		case verifiedIntact, verifiedRestored:
			t.drifted = false
		}
	})
	c.metrics.pods.WithLabelValues("drifted").Set(float64(c.tracks.countDrifted()))
	log := c.Log.With("namespace", pod.Namespace, "pod", pod.Name, "uid", string(pod.UID), "result", result)
	switch {
	case result == verifiedDrifted && !was:
		log.Warn("rules of a running pod have drifted", "detail", detail)
		c.event(pod, corev1.EventTypeWarning, "MeshRulesDrifted", detail)
	case result == verifiedRestored:
		log.Info("rules of a running pod are restored", "detail", detail)
		c.event(pod, corev1.EventTypeNormal, "MeshRulesRestored", detail)
	case same:
	case result == verifiedFailed, result == verifiedVariant, result == verifiedRefused:
		log.Warn("rules of a running pod cannot be verified", "detail", detail)
	case result == verifiedIntact && was:
		log.Info("rules of a running pod are as wanted again")
	}
}
