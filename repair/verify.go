package repair

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// due has a pod's rules verified with the next look at it, which is now. One that is broken waits for what is done to it, as long as its failures say.
func (c *Controller) due(uid types.UID) {
	if pod := c.pod(uid); pod != nil && c.shouldHaveRules(pod) {
		c.tracks.Change(uid, func(t *track) { t.due = true })
		c.queue.Add(uid)
	}
}

// shouldHaveRules reports whether a pod runs, is in the mesh, and is not known to be broken, in which case it is
// processed anyway.
func (c *Controller) shouldHaveRules(pod *corev1.Pod) bool {
	j := c.judged(pod)
	mesh := c.mesh(j)
	criteria := c.opts.Criteria[mesh.Name]
	if _, out := leftOut(pod, criteria); out || pod.Status.Phase != corev1.PodRunning || criteria.Policy == nil || !sidecars(*mesh) {
		return false
	}
	return (j.Mesh != nil || j.Undecided()) && !c.diagnose(pod).Broken
}

// verify compares one pod's rules with the wanted ones. The cached pod is good enough to find that all is well. Before
// anything else is concluded, the pod is read again.
func (c *Controller) verify(ctx context.Context, cached *corev1.Pod) {
	diffs, err := c.check(ctx, cached)
	switch {
	case errors.Is(err, ErrNotSelected), errors.Is(err, ErrNodeProxy), errors.Is(err, errSlow):
		return
	case err == nil && len(ruleset.Certain(diffs)) == 0:
		c.verifiedSame(cached, diffs)
		return
	}
	pod, err := c.cluster.Pod(ctx, cached.Namespace, cached.Name)
	switch {
	case apierrors.IsNotFound(err):
		return
	case apierrors.IsForbidden(err):
		c.deny(err)
		return
	case err != nil:
		c.verified(cached, statuscode.Failed, "read pod: "+words(err))
		return
	case pod.UID != cached.UID || !c.shouldHaveRules(pod):
		return
	}
	diffs, err = c.check(ctx, pod)
	switch {
	case errors.Is(err, errSlow):
	case err != nil:
		result := verifyFailed(err)
		var past *dialect.BypassError
		if result == statuscode.Sandboxed && errors.As(err, &past) {
			c.note(pod, func(t *track) { t.past = []dialect.Bypass{past.Bypass} })
		}
		c.verified(pod, result, words(err))
	case len(ruleset.Certain(diffs)) == 0:
		c.verifiedSame(pod, diffs)
	default:
		diffs = ruleset.Certain(diffs)
		if found := c.inventory.Look(); c.neverHad(ctx, pod, found, diffs) {
			c.verified(pod, statuscode.Uncaptured, "")
			c.verifiedNone(pod, found)
		} else {
			c.verified(pod, statuscode.Drifted, summary(diffs)+c.suspects())
		}
		if c.opts.Action == ActionRepair {
			c.restore(ctx, pod, diffs)
		}
	}
}

// verifiedSame reports a pod whose rules are there, and of which it may not be known whether packets come to them.
func (c *Controller) verifiedSame(pod *corev1.Pod, unknown []ruleset.Difference) {
	if len(unknown) > 0 {
		c.verified(pod, statuscode.CannotTell, unknown[0].String())
	} else {
		c.verified(pod, statuscode.Intact, "")
	}
}

// suspects names the programs that may have changed the rules.
func (c *Controller) suspects() string {
	if c.opts.Suspects == nil {
		return ""
	}
	names := c.opts.Suspects()
	if len(names) == 0 {
		return ""
	}
	return "; chains of our names may have been replaced by " + strings.Join(names, ", ")
}

// neverHad reports whether a pod has none of its rules, and nothing says that it had any.
func (c *Controller) neverHad(ctx context.Context, pod *corev1.Pod, found inventory.Reading, diffs []ruleset.Difference) bool {
	t := c.track(pod)
	t.seenIn = sight{in: true, trace: traced(found, pod, c.types())}
	known, _ := c.evidence(pod, t).captured()
	if known == status.StateCaptured {
		return false
	}
	r, ok := c.redirector.(interface {
		Rulesets(ctx context.Context, pod *corev1.Pod) ([]ruleset.Ruleset, error)
	})
	if !ok {
		return known == status.StateFailed
	}
	wanted, err := r.Rulesets(ctx, pod)
	return err == nil && slices.ContainsFunc(wanted, func(rs ruleset.Ruleset) bool { return rs.AllMissing(diffs) })
}

// verifiedNone reports a pod that never had its rules, as detection would.
func (c *Controller) verifiedNone(pod *corev1.Pod, found inventory.Reading) {
	if c.opts.Detect != nil {
		c.detect(pod, found)
	} else {
		c.detecting.Lock()
		c.note(pod, func(t *track) { t.seenIn = sight{in: true, trace: traced(found, pod, nil)} })
		c.foundUncaptured(pod, c.captured(pod, c.track(pod)))
		c.detecting.Unlock()
	}
}

func verifyFailed(err error) status.Code {
	switch {
	case errors.Is(err, ErrNoProcess):
		return statuscode.NoProcess
	case errors.Is(err, ErrVariant):
		return statuscode.Variant
	case errors.Is(err, ErrRefused):
		return status.CodeRefused
	case errors.As(err, new(*dialect.BypassError)):
		return statuscode.Sandboxed
	}
	return statuscode.Failed
}

// restore restores drifted rules within the budget of the pod's namespace. Without a token, the next round does.
func (c *Controller) restore(ctx context.Context, pod *corev1.Pod, was []ruleset.Difference) {
	if c.keeper.Take(pod.Namespace) > 0 {
		return
	}
	applied, left, err := c.write(ctx, pod)
	switch {
	case errors.Is(err, errSlow):
		c.keeper.GiveBack(pod.Namespace)
	case err != nil:
		c.verified(pod, verifyFailed(err), words(err))
	case len(left) > 0:
		c.verified(pod, statuscode.Failed, "restored, but "+summary(left))
	default:
		c.verified(pod, statuscode.Restored, "restored: "+summary(was)+unusable(applied))
	}
}

// verified counts a result and, if it is news, logs it and sends an event.
func (c *Controller) verified(pod *corev1.Pod, result status.Code, detail string) {
	c.metrics.verified.WithLabelValues(string(result)).Inc()
	was, same := false, false
	c.note(pod, func(t *track) {
		was, same = t.drifted, t.verified == result
		t.verified = result
		if result != statuscode.Sandboxed {
			t.past = nil
		}
		switch result {
		case statuscode.Drifted:
			t.drifted = true
		case statuscode.Intact, statuscode.Restored:
			t.drifted = false
			if c.opts.Detect == nil {
				t.seenIn, t.capture, t.told = sight{}, status.Pod{}, ""
			}
		}
	})
	detail = truncate.Finding(detail)
	log := c.log(pod).With("result", string(result))
	switch {
	case result == statuscode.Drifted && !was:
		log.Warn("rules of a running pod have drifted", "reason", "rules", "detail", detail)
		c.tell(pod, status.KindVerification, result, detail)
	case result == statuscode.Restored:
		log.Info("rules of a running pod are restored", "detail", detail)
		c.tell(pod, status.KindVerification, result, detail)
	case same:
	case result == statuscode.Sandboxed:
		log.Warn("the packets of a running pod do not come to its rules", "detail", detail)
		c.tell(pod, status.KindVerification, result, string(result)+": "+detail)
	case result == statuscode.Failed, result == statuscode.Variant, result == status.CodeRefused, result == statuscode.CannotTell:
		log.Warn("rules of a running pod cannot be verified", "detail", detail)
	case result == statuscode.Intact && was:
		log.Info("rules of a running pod are as wanted again")
	}
}
