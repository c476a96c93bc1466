package repair

import (
	"cmp"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
)

// maxNote is the maximum length of an event's message in bytes.
const maxNote = truncate.MaxFinding

// words shortens an error for an event and the log. The names of the settings that it is about stay.
func words(err error) string { return truncate.Error(err, maxNote) }

func (c *Controller) log(pod *corev1.Pod) *slog.Logger {
	return c.opts.Log.With("namespace", pod.Namespace, "pod", pod.Name, "uid", string(pod.UID))
}

// event tells the pod's owner. A writer of rules that differ decides how long they are, so the note is cut.
func (c *Controller) event(pod *corev1.Pod, kind, reason, note string) {
	c.events.Event(pod, kind, reason, truncate.Text(note, maxNote))
}

// tell sends the event of a code, if it has one: a warning if somebody has to look.
func (c *Controller) tell(pod *corev1.Pod, k status.Kind, code status.Code, note string) {
	row, _ := status.Lookup(k, code)
	kind := corev1.EventTypeNormal
	if row.Attention {
		kind = corev1.EventTypeWarning
	}
	if row.Event != "" {
		c.event(pod, kind, row.Event, note)
	}
}

// alwaysNews are the outcomes to report each time.
var alwaysNews = map[status.Code]bool{
	statuscode.Labelled: true, statuscode.Unlabelled: true, statuscode.Evicted: true, statuscode.Deleted: true, statuscode.Repaired: true,
}

// report counts and logs a result and sends its event; once for a pod whose result stays the same.
func (c *Controller) report(pod *corev1.Pod, r result) {
	known := false
	c.note(pod, func(t *track) {
		known = t.outcome == r.outcome && t.reason == r.reason
		t.outcome, t.reason = r.outcome, r.reason
	})
	if known && !alwaysNews[r.outcome] {
		return
	}
	c.metrics.outcomes.WithLabelValues(string(c.opts.Action), string(r.outcome), string(r.reason)).Inc()
	if r.reason == statuscode.NotCaptured { // as detection has said it
		r.reason = cmp.Or(c.track(pod).uncaptured, r.reason)
	}
	c.log(pod).Info("broken pod", "action", string(c.opts.Action), "outcome", string(r.outcome), "reason", string(r.reason), "detail", truncate.Finding(r.detail))
	c.tell(pod, status.KindOutcome, r.outcome, r.detail)
}
