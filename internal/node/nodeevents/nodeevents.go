// Package nodeevents is the sink and the limit of all events of a program: about its node, where kubectl describe node shows them,
// and about pods.
package nodeevents

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
// Equal events become one with a count. Of one component about one object there are 25 at once, and one more in five minutes.
type Events struct {
	source Source
	own    Recorder
	queue  chan *corev1.Event
}

// Start returns the sink. stop ends it without waiting for events that are not sent yet.
func (s Source) Start() (e *Events, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	e = &Events{source: s, queue: make(chan *corev1.Event, maxQueue)}
	e.own = e.Recorder(s.Component)
	go newSender(ctx, s).run(e.queue)
	return e, cancel
}

// Recorder records events about any object in the name of a component. Those about pods are in the pods' namespaces.
func (e *Events) Recorder(component string) Recorder {
	return recorder{e, corev1.EventSource{Component: component, Host: e.source.Node}}
}

// OfNode records news as an event about the node. Of the code no-network, the reason is NoNetwork.
func (e *Events) OfNode(n status.News) { Tell(e.own, Node(e.source.Node), n) }

// OfPod records news as an event about a pod.
func (e *Events) OfPod(pod status.ID, n status.News) {
	Tell(e.own, &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}, n)
}

// Tell records news as an event about an object.
func Tell(to Recorder, about *corev1.ObjectReference, n status.News) {
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
