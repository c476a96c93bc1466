package nodecontrol

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/status"
)

// The reasons of the pods' events.
const (
	eventEnrolled       = "MeshEnrolled"
	eventReleased       = "MeshReleased"
	eventHandOverFailed = "MeshHandOverFailed"
	eventDriftMended    = "MeshDriftMended"
	eventBypass         = "MeshBypass"
)

func idOf(ns attachment.NetNS) netnsexec.ID { return netnsexec.ID{Dev: ns.Dev, Ino: ns.Ino} }

// process makes a pod what it is to be.
func (c *Controller) process(ctx context.Context, v *keeper.Visit) (next keeper.Next) {
	pod := c.pod(v.UID)
	if pod != nil {
		if known := c.uidOf(pod); known != v.UID {
			c.dropAlias(v.UID)
			v.UID = known
		}
		if podid.Ended(pod) && c.nothingLeft(v.UID, pod) {
			return next
		}
	}
	e := c.entry(v.UID)
	if !e.mu.TryLock() { // nobody waits for one pod
		return keeper.Next{After: busyAgain}
	}
	defer e.mu.Unlock()
	attempt, _ := c.bounds(e.uid)
	running, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	w := &work{c: c, e: e, visit: v, want: c.want(running, e)}
	if m := c.mode(); m.to != nil {
		begin := time.Now()
		if given, err := c.give(running, w, m); given {
			v.Since(begin)
			if ctx.Err() == nil {
				c.finishGiving(w, m, err)
			}
			return keeper.Next{Retry: err != nil}
		}
	} else if !m.on {
		e.given = false
	} else if e.given { // it is another agent's, and that has the say
		c.lookedAt(e, true)
		return next
	}
	if wait := w.turn(time.Now()); wait > 0 {
		next.After = wait
		if !c.flaps(w, wait) {
			return next
		}
	}
	c.publish(w)
	first, last, seen, err := machine.Run(running, w.Wanted, w)
	if ctx.Err() != nil {
		return next // what was not found or not done for that says nothing about the pod
	}
	c.finish(w, first, last, seen, err)
	if w.Choice == machine.Gone && err == nil && w.pod == nil {
		if err := c.drop(e); err != nil {
			c.log(w.podOf()).Warn("cannot close the network namespace of a pod that is gone", "error", truncate.Finding(err.Error()))
		}
	}
	c.mu.Lock()
	e.done = w.Choice == machine.Gone && err == nil && w.pod != nil
	c.mu.Unlock()
	var back *heldBack
	soon := func(wait time.Duration) { // the earlier time counts
		if wait > 0 && (next.After == 0 || wait < next.After) {
			next.After = wait
		}
	}
	switch {
	case errors.As(err, &back):
		soon(back.wait)
	case err != nil, w.unfound != nil && (w.Choice == machine.In || w.Choice == machine.Out):
		next.Retry = true
	default:
		c.queue.Forget(v.UID)
		if e.draining { // before it may be let go there is nothing to see
			wait := c.opts.DrainMinimum - time.Since(e.heard)
			if by := c.mode().by; !by.IsZero() {
				wait = min(wait, time.Until(by))
			}
			soon(max(drainLook, wait))
		}
	}
	if e.draining {
		soon(c.opts.DrainTimeout - time.Since(e.left))
	}
	return next
}

// publish notes whether the pod belongs into a snapshot: it is to be in the proxy's care, or may be.
func (c *Controller) publish(w *work) bool {
	in := w.Choice == machine.In || w.Choice != machine.Gone && (w.e.ours && !(w.e.draining && w.e.held == heldNo) || w.e.held == heldYes)
	w.e.mesh = w.mesh
	c.mu.Lock()
	defer c.mu.Unlock()
	ns := w.e.share.NetNS
	w.e.share, w.e.shared = w.workload(), in
	w.e.share.NetNS = ns
	return in
}

// finish reports how a run ended.
func (c *Controller) finish(w *work, first, last machine.Actual, seen bool, err error) {
	e, s := w.e, w.stateOf()
	state, reason := machine.Report(w.Wanted, last, e.captured)
	if !seen { // it cannot be told, so it is not said to be captured
		state, reason = status.StateUnknown, statuscode.SelectionUnknown
	}
	s.State, s.Reason = state, reason
	if err == nil && w.unfound != nil {
		s.Detail = w.unfound.Error()
	}
	if err != nil {
		s.Detail = truncate.Error(err, truncate.MaxFinding)
		if s.State != status.StateCaptured {
			s.Reason = reasonOf(err, s.Reason)
		}
		c.metrics.failed(err)
	}
	mended := c.drifted(w, first, last, err)
	captured := s.State == status.StateCaptured
	if captured {
		s = w.extent(s)
	}
	joined := captured && !e.captured && !w.starting && w.result != nil && w.result.Changed
	switch {
	case captured:
		e.captured = true
	case s.State == status.StateOutside:
		e.captured, e.backend, s.Backend = false, "", ""
		if w.Choice != machine.Gone && !last.Held {
			e.held = heldNo
		}
	}
	c.lookedAt(e, w.releasing)
	before := c.setState(e, s)
	if w.before != nil {
		before = *w.before
	}
	c.tell(w, before, s, joined, mended, err)
}

// stateOf returns what there is to say of the pod, but for its state and the reason.
func (w *work) stateOf() status.Pod {
	s := status.Pod{ID: w.podOf(), Backend: w.e.backend, Detail: w.detail}
	if w.mesh != nil && w.Choice != machine.Out && w.Choice != machine.Gone {
		s.Dialect, s.Bypasses, s.ExchangeResets = w.mesh.Name, podrules.Extent(w.plan, w.past...).Bypasses, w.e.unmoved
	}
	return s
}

// foretell publishes that the pod is captured, which all steps before the annotation have made sure of: whoever reads the
// annotation and then asks the agent is not told less.
func (w *work) foretell() {
	if w.before != nil {
		return
	}
	s := w.stateOf()
	s.State, s.Reason = status.StateCaptured, statuscode.Captured
	before := w.c.setState(w.e, w.extent(s))
	w.before = &before
}

// extent is the state of a pod that the proxy has and whose rules are there: as far as its packets come to them, and are captured by them.
func (w *work) extent(s status.Pod) status.Pod {
	e := podrules.Extent(w.plan, w.past...)
	switch {
	case e.State == status.StateFailed, e.Reason == status.CodePartly:
		s.State, s.Reason, s.Detail = e.State, e.Reason, e.Detail
	case len(w.unseen) > 0:
		s.State, s.Reason, s.Detail = status.StateUnknown, statuscode.CannotTell, w.unseen[0].String()
	}
	return s
}

// drifted counts what was found and mended, and returns the kinds that were mended.
func (c *Controller) drifted(w *work, first, last machine.Actual, err error) (mended []status.Code) {
	e := w.e
	if e.captured {
		for _, kind := range machine.Drift(w.Wanted, first) {
			if !slices.Contains(e.drift, kind) {
				e.drift = append(e.drift, kind)
				c.metrics.found.WithLabelValues(string(kind)).Inc()
			}
		}
	}
	if err != nil || w.Choice != machine.In || !last.Captured() {
		return nil
	}
	still := machine.Drift(w.Wanted, last)
	for _, kind := range e.drift {
		if !slices.Contains(still, kind) {
			mended = append(mended, kind)
			c.metrics.mended.WithLabelValues(string(kind)).Inc()
		}
	}
	e.drift = slices.DeleteFunc(e.drift, func(kind status.Code) bool { return slices.Contains(mended, kind) })
	return mended
}

// reasonOf returns the code of a failure, or else what is the case.
func reasonOf(err error, is status.Code) status.Code {
	var back *heldBack
	var step *machine.StepError
	switch {
	case errors.As(err, &back):
		return back.reason
	case is == statuscode.NodeProxyGone:
		return is
	case errors.Is(err, podrules.ErrVariant):
		return statuscode.Variant
	case errors.Is(err, errDeaf):
		return statuscode.NoListeners
	case errors.As(err, &step):
		return step.Failed()
	}
	return is
}

// tell logs and announces what changed.
func (c *Controller) tell(w *work, before, now status.Pod, joined bool, mended []status.Code, err error) {
	log := c.log(now.ID).With("state", string(now.State), "reason", now.Reason)
	changed := before.State != now.State || before.Reason != now.Reason
	switch {
	case !changed:
	case err != nil:
		log.Warn("a pod is not as it is to be", "error", truncate.Finding(err.Error()))
	case before.State != "" || now.State != status.StateOutside:
		log.Info("a pod's redirection changed", "detail", truncate.Finding(now.Detail))
	}
	if w.pod == nil {
		return
	}
	var failure status.Code
	var back *heldBack
	if err != nil && now.State != status.StateCaptured && !errors.As(err, &back) {
		failure = now.Reason
	}
	c.mu.Lock()
	again := w.e.announced == failure
	w.e.announced = failure
	c.mu.Unlock()
	switch {
	case failure != "" && !again:
		c.event(w.pod, corev1.EventTypeWarning, eventHandOverFailed, string(now.Reason)+": "+err.Error())
	case changed && now.Reason == statuscode.Sandboxed:
		c.event(w.pod, corev1.EventTypeWarning, eventBypass, string(now.Reason)+": "+now.Detail)
	case joined:
		c.event(w.pod, corev1.EventTypeNormal, eventEnrolled, "the node's proxy of mesh "+w.mesh.Name+" listens in the pod, and its traffic is captured")
	case w.removed && now.State == status.StateOutside:
		c.event(w.pod, corev1.EventTypeNormal, eventReleased, "the pod's traffic is not captured any more: "+string(now.Reason))
	}
	words := make([]string, 0, len(mended))
	for _, kind := range mended {
		words = append(words, string(kind))
	}
	if slices.ContainsFunc(mended, func(kind status.Code) bool { return kind != statuscode.StatusStale }) {
		c.event(w.pod, corev1.EventTypeNormal, eventDriftMended, "mended: "+strings.Join(words, ", "))
	}
}

// event sends an event about a pod, within the limit. What is not sent is in the log and in the pod's state.
func (c *Controller) event(pod *corev1.Pod, kind, reason, text string) {
	if !c.mayTell() {
		return
	}
	c.opts.Events.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}, kind, reason, truncate.Finding(text))
}
