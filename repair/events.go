package repair

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/internal/brief"
)

// eventTimeout bounds one request for an event: they are worth less than actions.
const eventTimeout = 10 * time.Second

// maxNote is the length of the longest message of an event, in bytes: what the
// API server takes as the note of one (noteLengthLimit in
// k8s.io/kubernetes/pkg/apis/core/validation/events.go).
const maxNote = 1024

// words are an error's, in an event and in the log. The names of the pod's
// settings that it is about stay, however long it is.
func words(err error) string { return brief.Error(err, maxNote) }

// event tells the pod's owner. Rules that differ may be as long as who writes
// them likes.
func (c *Controller) event(pod *corev1.Pod, kind, reason, note string) {
	c.Events.Event(objectRef(pod), kind, reason, brief.Text(note, maxNote))
}

// EventSink writes events to the API server. Denied is called, if not nil, when it
// refuses them; the events are then dropped, each without a word in the log.
func (k *Kube) EventSink(denied func(error)) record.EventSink { return eventSink{k, denied} }

type eventSink struct {
	k      *Kube
	denied func(error)
}

// Create implements record.EventSink.
func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	out := &corev1.Event{}
	err := s.k.core.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Into(out)
	return s.answer(out, e, err)
}

// Update implements record.EventSink. The recorder patches instead.
func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

// Patch implements record.EventSink.
func (s eventSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	out := &corev1.Event{}
	err := s.k.core.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).
		Body(patch).Do(ctx).Into(out)
	return s.answer(out, e, err)
}

func (s eventSink) answer(out, sent *corev1.Event, err error) (*corev1.Event, error) {
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		if s.denied != nil {
			s.denied(err)
		}
		return sent, nil
	}
	return out, err
}

// NewRecorder returns a recorder that writes to the sink as the component on the
// node, and what stops it. It folds like events into one with a count.
func NewRecorder(sink record.EventSink, node string) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(sink)
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "meshcni-repair", Host: node}), broadcaster.Shutdown
}
