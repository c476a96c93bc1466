package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// eventTimeout bounds the request for one event.
const eventTimeout = 10 * time.Second

// Recorder returns a recorder for the product's repair on a node, and a function that stops it. Similar events become
// one with a count. If the server refuses events, the recorder calls denied and drops them silently.
func (c *Client) Recorder(node string, denied func(error)) (events record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(eventSink{c, denied})
	return broadcaster.NewRecorder(Scheme, corev1.EventSource{Component: c.component, Host: node}), broadcaster.Shutdown
}

type eventSink struct {
	*Client

	denied func(error)
}

// Create implements [record.EventSink].
func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	out, err := into(ctx, s.core.Post().Namespace(e.Namespace).Resource("events").Body(e), &corev1.Event{})
	return s.answer(out, e, err)
}

// Update implements [record.EventSink]. The recorder patches instead.
func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

// Patch implements [record.EventSink].
func (s eventSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	out, err := into(ctx, s.core.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch), &corev1.Event{})
	return s.answer(out, e, err)
}

func (s eventSink) answer(out, sent *corev1.Event, err error) (*corev1.Event, error) {
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		s.denied(err)
		return sent, nil
	}
	return out, err
}
