// Package nodeevents is the sink and the limit of all events of a program: about its node, where kubectl describe node shows them,
// and about pods.
package nodeevents

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
)

const (
	// maxNote is the maximum length of an event's message in bytes: the API server's limit for notes (noteLengthLimit in
	// k8s.io/kubernetes/pkg/apis/core/validation/events.go).
	maxNote = 1024
	// timeout bounds the request for one event.
	timeout = 10 * time.Second
)

// Limit returns a function that reports whether one more event about pods may be sent: 50 at once, and one a second. A node has
// some hundred pods.
func Limit() func() bool { return rate.NewLimiter(1, 50).Allow }

// Source says whose events they are.
type Source struct {
	// API returns the client, for each event. An error says why there is none.
	API func() (*api.Client, error)
	// Component is the reporting controller, Node the name of the node.
	Component, Node string
	// Log is told when events cannot be sent, once until one could.
	Log *slog.Logger
	// Denied is called instead of Log with each refusal, unless only the namespace is being deleted. Nil: Log is told.
	Denied func(error)
}

// Events records events. Nobody waits for them: they are sent in the background, and one that cannot be sent for two minutes is dropped.
// Equal events become one with a count, and client-go bounds their rate.
type Events struct {
	broadcaster record.EventBroadcaster
	source      Source
	own         record.EventRecorder
}

// Start returns the sink. stop ends it without waiting for events that are not sent yet.
func (s Source) Start() (e *Events, stop func()) {
	// The recorder logs each attempt with all of the event; the sink says once what is wrong.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.New(nil)))
	e = &Events{broadcaster: record.NewBroadcaster(record.WithContext(ctx)), source: s}
	e.broadcaster.StartRecordingToSink(&sink{ctx: ctx, source: s})
	e.own = e.Recorder(s.Component)
	return e, func() {
		cancel()
		e.broadcaster.Shutdown()
	}
}

// Recorder records events about any object in the name of a component. Those about pods are in the pods' namespaces.
func (e *Events) Recorder(component string) record.EventRecorder {
	return e.broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component, Host: e.source.Node})
}

// OfNode records news as an event about the node. Of the code no-network, the reason is NoNetwork.
func (e *Events) OfNode(n status.News) { Tell(e.own, Node(e.source.Node), n) }

// OfPod records news as an event about a pod.
func (e *Events) OfPod(pod status.ID, n status.News) {
	Tell(e.own, &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}, n)
}

// Tell records news as an event about an object.
func Tell(to record.EventRecorder, about *corev1.ObjectReference, n status.News) {
	kind := corev1.EventTypeNormal
	if n.Attention {
		kind = corev1.EventTypeWarning
	}
	to.Event(about, kind, Reason(string(n.Code)), truncate.Text(n.Text, maxNote))
}

// Node refers to a node. The kubelet's events about its node have the node's name as UID too; kubectl describe looks for both.
func Node(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}

// Reason is a code as a reason of events: CamelCase, as Kubernetes has them.
func Reason(code string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(code, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// scheme has the kinds that are sent and referred to.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Event{}, &corev1.Pod{}) // pods are referred to
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	return s
}()

// sink implements [record.EventSink].
type sink struct {
	ctx    context.Context
	source Source

	mu      sync.Mutex
	failing bool
}

// Create sends a new event.
func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.send(e, func(ctx context.Context, c *api.Client) (*corev1.Event, error) { return c.CreateEvent(ctx, e) })
}

// Patch changes the count of one.
func (s *sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.send(e, func(ctx context.Context, c *api.Client) (*corev1.Event, error) { return c.PatchEvent(ctx, e, patch) })
}

// Update is not used: the recorder patches instead.
func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

func (s *sink) send(e *corev1.Event, request func(context.Context, *api.Client) (*corev1.Event, error)) (*corev1.Event, error) {
	out := &corev1.Event{}
	client, err := s.source.API()
	if err == nil {
		ctx, cancel := context.WithTimeout(s.ctx, timeout)
		defer cancel()
		out, err = request(ctx, client)
	}
	if !apierrors.IsForbidden(err) {
		s.note(err)
		return out, err
	}
	switch {
	case s.source.Denied == nil:
		s.note(err)
	case !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		s.source.Denied(err)
	}
	return e, nil // another attempt would fare no better
}

// note logs the first of several failures.
func (s *sink) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.failing && s.ctx.Err() == nil {
		s.source.Log.Warn("events cannot be sent now; those about the node need create and patch of events in the namespace default, those about pods in theirs", "error", err)
	}
	s.failing = err != nil
}
