package nodeevents

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// eventsOf are a node's events, as kubectl describe node looks for them.
func eventsOf(t *testing.T, a *kubetest.Admin, node string) []corev1.Event {
	t.Helper()
	var list corev1.EventList
	a.Do(t, http.MethodGet, "/api/v1/events?fieldSelector=involvedObject.kind=Node,involvedObject.name="+node+",involvedObject.uid="+node, nil, &list)
	return list.Items
}

func TestEventsOfANode(t *testing.T) {
	s := kubetest.Shared(t)
	var log proctest.Buffer
	var asked atomic.Int32
	events, stop := Source{
		Config: func() (*rest.Config, error) {
			asked.Add(1)
			return s.Config(kubetest.AdminToken)
		},
		Component: "meshcni-node", Node: "n1", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}.Start()
	defer stop()
	assert.Zero(t, asked.Load(), "nothing is asked before there is something to say")
	for range 3 {
		events.OfNode(true, "no-network", "not ready: there is none")
	}
	events.OfNode(false, "ready", strings.Repeat("long ", 1000))
	a := s.Admin(t)
	var all []corev1.Event
	require.Eventually(t, func() bool {
		all = eventsOf(t, a, "n1")
		return len(all) == 2 && all[0].Count+all[1].Count == 4
	}, netnstest.Patience, 10*time.Millisecond)
	for _, e := range all {
		assert.Equal(t, "default", e.Namespace)
		assert.Equal(t, "meshcni-node", e.ReportingController)
		assert.Equal(t, "n1", e.Source.Host)
		switch e.Reason {
		case "NoNetwork":
			assert.Equal(t, corev1.EventTypeWarning, e.Type)
			assert.Equal(t, "not ready: there is none", e.Message)
			assert.EqualValues(t, 3, e.Count, "equal events are one")
		case "Ready":
			assert.Equal(t, corev1.EventTypeNormal, e.Type)
			assert.LessOrEqual(t, len(e.Message), maxNote)
		default:
			assert.Fail(t, e.Reason)
		}
	}
	assert.Empty(t, log.String())
}

// An API server that is away, or refuses, holds up nobody; the latter is said once.
func TestEventsThatCannotBeSent(t *testing.T) {
	var log proctest.Buffer
	asked := make(chan struct{}, 1)
	events, stop := Source{
		Config: func() (*rest.Config, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			return nil, errors.New("no token yet")
		},
		Component: "c", Node: "n2", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}.Start()
	for range 5000 { // more than are kept
		events.OfNode(true, "fight", "text")
	}
	<-asked
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "no token yet") }, netnstest.Patience, time.Millisecond)
	stop()

	s := kubetest.Shared(t)
	a := s.Admin(t)
	token := a.ServiceAccount(t, a.Namespace(t), "without-rights")
	events, stop = Source{
		Config:    func() (*rest.Config, error) { return s.Config(token) },
		Component: "c", Node: "n2", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}.Start()
	defer stop()
	events.OfNode(true, "fight", "text")
	events.OfNode(true, "no-network", "text")
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "forbidden") }, netnstest.Patience, 10*time.Millisecond)
	assert.Equal(t, 1, strings.Count(log.String(), "forbidden"))
	assert.Empty(t, eventsOf(t, a, "n2"))
}

// Credentials that cannot be used yet are tried again with the next event, or the same one once more.
func TestCredentialsThatComeLater(t *testing.T) {
	s := kubetest.Shared(t)
	good, err := s.Config(kubetest.AdminToken)
	require.NoError(t, err)
	bad := rest.CopyConfig(good)
	bad.CAFile, bad.CAData = "", []byte("half a certificate")
	var log proctest.Buffer
	given := bad
	to := &sink{ctx: t.Context(), source: Source{
		Config: func() (*rest.Config, error) { return given, nil }, Log: slog.New(slog.NewTextHandler(&log, nil)),
	}}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "n3.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n3", UID: "n3"},
	}
	for range 2 {
		_, err = to.Create(event)
		require.ErrorContains(t, err, "prepare to send events")
	}
	assert.Equal(t, 1, strings.Count(log.String(), "prepare to send events"))
	given = good
	_, err = to.Create(event)
	require.NoError(t, err)
	assert.Len(t, eventsOf(t, s.Admin(t), "n3"), 1)
}

func TestReason(t *testing.T) {
	for code, want := range map[string]string{"fight": "Fight", "no-api-server": "NoApiServer", "other-mesh-gone": "OtherMeshGone"} {
		assert.Equal(t, want, Reason(code))
	}
}
