// Package podstatus tells the API server of pods that join and leave the node's proxy: by an annotation and by events. It
// uses two verbs, patch of pods/status and create and patch of events.
package podstatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/internal/podpatch"
	"github.com/meshcni/meshcni/nodeproxy"
)

const (
	// component is who the events are from.
	component = "meshcni-node"
	// eventTimeout bounds the request for one event.
	eventTimeout = 10 * time.Second
)

var scheme = runtime.NewScheme()

func init() {
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.Event{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
}

// Client talks to an API server. It is safe for concurrent use.
type Client struct{ core rest.Interface }

var _ nodeproxy.Status = (*Client)(nil)

// New returns a client with the configuration's credentials. It sends no request. The configuration's QPS and Burst limit
// its requests: when all pods of a node join at once, it sends one for each.
func New(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make API client for pods' status: %w", err)
	}
	return &Client{core}, nil
}

// Set implements [nodeproxy.Status] by a merge patch of the pod's status: that subresource takes annotations, and does not
// take the right to change what a pod runs. The UID is a precondition.
func (c *Client) Set(ctx context.Context, pod nodeproxy.PodID, key, value string) error {
	patch, err := podpatch.Patch(pod.UID, "", "annotations", key, value)
	if err == nil {
		err = podpatch.Answer(pod.Name, c.core.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
			SubResource("status").Body(patch).Do(ctx).Error())
	}
	if err != nil {
		return fmt.Errorf("set annotation %s of pod %s/%s to %q: %w", key, pod.Namespace, pod.Name, value, err)
	}
	return nil
}

// Recorder returns a recorder of events from this node, and a function that stops it. Similar events become one with a count.
// Events that the server refuses for want of a permission are dropped, and denied is called.
func (c *Client) Recorder(node string, denied func(error)) (events record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(sink{c, denied})
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component, Host: node}), broadcaster.Shutdown
}

type sink struct {
	*Client

	denied func(error)
}

// Create implements [record.EventSink].
func (s sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.send(e, s.core.Post().Namespace(e.Namespace).Resource("events").Body(e))
}

// Update implements [record.EventSink]. The recorder patches instead.
func (s sink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

// Patch implements [record.EventSink].
func (s sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.send(e, s.core.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch))
}

func (s sink) send(e *corev1.Event, r *rest.Request) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	out := &corev1.Event{}
	err := r.Do(ctx).Into(out)
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		s.denied(err)
		return e, nil
	}
	return out, err
}
