package nodeevents

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

func client(t *testing.T, s *kubetest.Server, token string) *api.Client {
	config, err := s.Config(token)
	assert.NoError(t, err)
	c, err := api.New(meshcni.Identity{}, config, "")
	assert.NoError(t, err)
	return c
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
		API: func() (*api.Client, error) {
			asked.Add(1)
			return client(t, s, kubetest.AdminToken), nil
		},
		Component: "meshcni-node", Node: "n1", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}.Start()
	defer stop()
	assert.Zero(t, asked.Load(), "nothing is asked before there is something to say")
	for range 3 {
		events.OfNode(status.News{Code: "no-network", Text: "not ready: there is none", Attention: true})
	}
	events.OfNode(status.News{Code: "ready", Text: strings.Repeat("long ", 1000)})
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
		API: func() (*api.Client, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			return nil, errors.New("no token yet")
		},
		Component: "c", Node: "n2", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}.Start()
	for range 5000 { // more than are kept
		events.OfNode(status.News{Code: "fight", Text: "text", Attention: true})
	}
	<-asked
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "no token yet") }, netnstest.Patience, time.Millisecond)
	stop()

	s := kubetest.Shared(t)
	a := s.Admin(t)
	token := a.ServiceAccount(t, a.Namespace(t), "without-rights")
	events, stop = Source{
		API:       func() (*api.Client, error) { return client(t, s, token), nil },
		Component: "c", Node: "n2", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}.Start()
	defer stop()
	events.OfNode(status.News{Code: "fight", Text: "text", Attention: true})
	events.OfNode(status.News{Code: "no-network", Text: "text", Attention: true})
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "forbidden") }, netnstest.Patience, 10*time.Millisecond)
	assert.Equal(t, 1, strings.Count(log.String(), "forbidden"))
	assert.Empty(t, eventsOf(t, a, "n2"))
}

// TestDenied: a refusal is told, unless only the namespace is going, and is no warning beside that.
func TestDenied(t *testing.T) {
	t.Parallel()
	sent := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		defer func() { sent <- r.Method + " " + r.URL.Path }()
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/namespaces/granted/events" {
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
			return
		}
		no := apierrors.NewForbidden(corev1.Resource("events"), r.URL.Path, nil)
		no.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		if r.URL.Path == "/api/v1/namespaces/going/events" {
			no.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		}
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(no.Status())
	}))
	defer s.Close()
	c, err := api.New(meshcni.Identity{}, &rest.Config{Host: s.URL}, "node")
	require.NoError(t, err)
	var log proctest.Buffer
	denied := make(chan error, 10)
	all, stop := Source{
		API: func() (*api.Client, error) { return c, nil }, Component: "repair", Node: "node", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Denied: func(err error) { denied <- err },
	}.Start()
	defer stop()
	for _, namespace := range []string{"granted", "going", "refused"} {
		all.Recorder("repair").Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", UID: "1"}}, corev1.EventTypeNormal, "Reason", "note")
		assert.Equal(t, "POST /api/v1/namespaces/"+namespace+"/events", <-sent)
	}
	require.ErrorContains(t, <-denied, "namespaces/refused/", "the first that is told")
	assert.Empty(t, log.String())
}

func TestReason(t *testing.T) {
	for code, want := range map[string]string{"fight": "Fight", "no-api-server": "NoApiServer", "other-mesh-gone": "OtherMeshGone"} {
		assert.Equal(t, want, Reason(code))
	}
}
