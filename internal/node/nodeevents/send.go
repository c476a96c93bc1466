package nodeevents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/lru"

	"github.com/meshcni/meshcni/internal/node/api"
)

// The bounds are client-go's. Its own recorder is not used: it imports the OpenAPI schemas, which are 0.8 MB of the memory of each agent.
const (
	maxQueue = 1000 // events that wait
	maxKnown = 4096 // objects, and events with a count, that are remembered
	atOnce   = 25   // events of a component about an object
	again    = 5 * time.Minute
	tries    = 12 // to send one event, each after pause
	pause    = 10 * time.Second
)

// Recorder records events. [record.EventRecorder] of client-go is one.
//
// [record.EventRecorder]: https://pkg.go.dev/k8s.io/client-go/tools/record#EventRecorder
type Recorder interface {
	// Event records one about an object: an [*corev1.ObjectReference], or a pod. kind is corev1.EventTypeNormal or EventTypeWarning. It does
	// not wait.
	Event(object runtime.Object, kind, reason, message string)
}

// Discard records nothing.
var Discard Recorder = discard{}

type discard struct{}

// Event implements [Recorder].
func (discard) Event(runtime.Object, string, string, string) {}

// recorder implements [Recorder].
type recorder struct {
	events *Events
	source corev1.EventSource
}

// Event implements [Recorder].
func (r recorder) Event(object runtime.Object, kind, reason, message string) {
	about, err := reference.GetReference(scheme, object)
	if err != nil {
		r.events.source.Log.Error("an event is about no object that is known", "reason", reason, "error", err)
		return
	}
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: name(about.Name, now.UnixNano())},
		InvolvedObject: *about, Reason: reason, Message: message, Type: kind, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: r.source, ReportingController: r.source.Component, ReportingInstance: r.source.Host,
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault
	}
	select {
	case r.events.queue <- e:
	default: // nobody waits for an API server that is slower than what happens
	}
}

// name returns a name of an event that no other has, of at most 253 bytes.
func name(object string, nanoseconds int64) string {
	suffix := fmt.Sprintf(".%x", nanoseconds)
	return strings.TrimRight(object[:min(len(object), 253-len(suffix))], ".-") + suffix
}

// scheme has the kinds of objects that events are about, besides references.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{})
	return s
}()

// sender sends events, one after the other.
type sender struct {
	ctx     context.Context
	source  Source
	sent    *lru.Cache // *corev1.Event as stored, by same
	limits  *lru.Cache // *rate.Limiter, by origin
	failing bool
}

// origin is what a rate is of.
type origin struct {
	about  corev1.ObjectReference
	source corev1.EventSource
}

// same is equal for two events that become one.
type same struct {
	origin

	kind, reason, message string
}

func newSender(ctx context.Context, s Source) *sender {
	return &sender{ctx: ctx, source: s, sent: lru.New(maxKnown), limits: lru.New(maxKnown)}
}

func (s *sender) run(queue <-chan *corev1.Event) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case e := <-queue:
			if s.may(e) {
				s.send(e)
			}
		}
	}
}

func originOf(e *corev1.Event) origin { return origin{e.InvolvedObject, e.Source} }

// may reports whether one more event of its component is sent about its object.
func (s *sender) may(e *corev1.Event) bool {
	limit, known := s.limits.Get(originOf(e))
	if !known {
		limit = rate.NewLimiter(rate.Every(again), atOnce)
		s.limits.Add(originOf(e), limit)
	}
	return limit.(*rate.Limiter).Allow() //nolint:errcheck,forcetypeassert // nothing else is in it
}

// send sends an event until the API server has answered, at most tries times.
func (s *sender) send(e *corev1.Event) {
	key := same{originOf(e), e.Type, e.Reason, e.Message}
	for try := range tries {
		if try > 0 {
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		stored, err := s.request(key, e)
		if err == nil {
			s.sent.Add(key, stored)
		}
		s.tell(err)
		if err == nil || final(err) || s.ctx.Err() != nil {
			return
		}
	}
}

// final reports whether an answer says that another attempt would fare no better.
func final(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && answer.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err)
}

// request sends an event, or that it has happened once more, and returns it as it is stored.
func (s *sender) request(key same, e *corev1.Event) (*corev1.Event, error) {
	client, err := s.source.API()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	if known, is := s.sent.Get(key); is {
		stored, err := s.count(ctx, client, known.(*corev1.Event), e.LastTimestamp) //nolint:errcheck,forcetypeassert // nothing else is in it
		if !apierrors.IsNotFound(err) {
			return stored, err
		}
		s.sent.Remove(key) // events are deleted after a while
	}
	return client.CreateEvent(ctx, e)
}

// count adds one to an event's count.
func (s *sender) count(ctx context.Context, client *api.Client, stored *corev1.Event, last metav1.Time) (*corev1.Event, error) {
	patch, err := json.Marshal(map[string]any{"count": stored.Count + 1, "lastTimestamp": last})
	if err != nil {
		return nil, fmt.Errorf("encode the count of an event: %w", err)
	}
	return client.PatchEvent(ctx, stored, patch)
}

// tell logs the first of several failures. A refusal goes to Denied, if that is there, unless only the namespace is being deleted.
func (s *sender) tell(err error) {
	if apierrors.IsForbidden(err) && s.source.Denied != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			s.source.Denied(err)
		}
		return
	}
	if err != nil && !s.failing && s.ctx.Err() == nil {
		s.source.Log.Warn("events cannot be sent now; those about the node need create and patch of events in the namespace default, those about pods in theirs", "error", err)
	}
	s.failing = err != nil
}
