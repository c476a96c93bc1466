package repair

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/status"
)

// maxNote is the maximum length of an event's message in bytes.
const maxNote = brief.MaxFinding

// words shortens an error for an event and the log. The names of the settings that it is about stay.
func words(err error) string { return brief.Error(err, maxNote) }

// event tells the pod's owner. A writer of rules that differ decides how long they are, so the note is cut.
func (c *Controller) event(pod *corev1.Pod, kind, reason, note string) {
	c.events.Event(pod, kind, reason, brief.Text(note, maxNote))
}

// eventReasons maps outcomes to Kubernetes events. Other outcomes are no events: there is nothing left to look at.
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

// alwaysNews are the outcomes to report each time.
var alwaysNews = map[Outcome]bool{
	OutcomeLabelled: true, OutcomeUnlabelled: true, OutcomeEvicted: true, OutcomeDeleted: true, OutcomeRepaired: true,
}

// report counts and logs a result and sends its event; once for a pod whose result stays the same.
func (c *Controller) report(pod *corev1.Pod, r result) {
	known := false
	c.tracks.change(pod.UID, func(t *track) {
		known = t.outcome == r.outcome && t.reason == r.reason
		t.outcome, t.reason = r.outcome, r.reason
	})
	if known && !alwaysNews[r.outcome] {
		return
	}
	c.metrics.outcomes.WithLabelValues(string(c.opts.Action), string(r.outcome), r.reason).Inc()
	if r.reason == string(NotCaptured) { // as detection has said it
		r.reason = string(cmp.Or(c.tracks.get(pod.UID).uncaptured, status.Code(r.reason)))
	}
	c.opts.Log.Info("broken pod", "namespace", pod.Namespace, "pod", pod.Name, "uid", string(pod.UID),
		"action", string(c.opts.Action), "outcome", string(r.outcome), "reason", r.reason, "detail", brief.Finding(r.detail))
	if e, ok := eventReasons[r.outcome]; ok {
		c.event(pod, e.kind, e.reason, r.detail)
	}
}
