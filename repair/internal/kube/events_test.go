package kube_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/repair/internal/kube"
)

// TestRecorder: events are sent by the client, whose requests are counted; a refusal is told, unless only the namespace is going, and is no
// warning beside that.
func TestRecorder(t *testing.T) {
	t.Parallel()
	sent := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		defer func() { sent <- r.Method + " " + r.URL.Path }()
		if r.URL.Path == "/api/v1/namespaces/granted/events" {
			w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
			return
		}
		no := apierrors.NewForbidden(corev1.Resource("events"), r.URL.Path, nil)
		no.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		if r.URL.Path == "/api/v1/namespaces/going/events" {
			no.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(no.Status())
	}))
	defer s.Close()
	c, err := kube.New(meshcni.Identity{}.WithDefaults(), &rest.Config{Host: s.URL}, "node")
	require.NoError(t, err)
	var log proctest.Buffer
	denied := make(chan error, 10)
	events, stop := c.Recorder(slog.New(slog.NewTextHandler(&log, nil)), func(err error) { denied <- err })
	defer stop()
	for _, namespace := range []string{"granted", "going", "refused"} {
		events.Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", UID: "1"}}, corev1.EventTypeNormal, "Reason", "note")
		assert.Equal(t, "POST /api/v1/namespaces/"+namespace+"/events", <-sent)
	}
	require.ErrorContains(t, <-denied, "namespaces/refused/", "the first that is told")
	assert.Empty(t, log.String())
}
