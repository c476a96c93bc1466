package api

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MayCreateEvents allows CreateEvent.
var MayCreateEvents = Right{Verb: "create", Resource: "events"}

// CreateEvent sends a new event, and returns it as it is stored.
func (c *Client) CreateEvent(ctx context.Context, e *corev1.Event) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, c.core.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Into(out)
}

// MayPatchEvents allows PatchEvent.
var MayPatchEvents = Right{Verb: "patch", Resource: "events"}

// PatchEvent changes an event, such as its count.
func (c *Client) PatchEvent(ctx context.Context, e *corev1.Event, patch []byte) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, c.core.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch).Do(ctx).Into(out)
}
