package podstatus_test

import (
	"io"
	"net/http"
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

	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/podstatus"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

func client(t *testing.T) (*plugintest.APIServer, *podstatus.Client) {
	t.Helper()
	server := plugintest.NewAPIServer(t)
	c, err := podstatus.New(&rest.Config{Host: server.URL(), BearerToken: server.Token(), TLSClientConfig: rest.TLSClientConfig{CAData: server.CA()}})
	require.NoError(t, err)
	return server, c
}

// TestSet: the annotation of that pod, and of no other of its name.
func TestSet(t *testing.T) {
	t.Parallel()
	server, c := client(t)
	server.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "u1", Annotations: map[string]string{"other": "stays"}}})
	id := nodeproxy.PodID{UID: "u1", Namespace: "shop", Name: "cart-0"}
	const key = "ambient.istio.io/redirection"
	require.NoError(t, c.Set(t.Context(), id, key, "enabled"))
	assert.Equal(t, map[string]string{"other": "stays", key: "enabled"}, server.Pod("shop", "cart-0").Annotations)
	assert.Equal(t, []string{"PATCH /api/v1/namespaces/shop/pods/cart-0/status"}, server.Requests())

	successor := id
	successor.UID = "u2"
	err := c.Set(t.Context(), successor, key, "")
	require.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Equal(t, "enabled", server.Pod("shop", "cart-0").Annotations[key])

	require.NoError(t, c.Set(t.Context(), id, key, ""))
	assert.Equal(t, map[string]string{"other": "stays"}, server.Pod("shop", "cart-0").Annotations)
	server.DeletePod("shop", "cart-0")
	err = c.Set(t.Context(), id, key, "enabled")
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	assert.ErrorContains(t, err, `set annotation ambient.istio.io/redirection of pod shop/cart-0 to "enabled"`)
}

// TestRecorder: events are of the pod and of this node; without the permission they are dropped, and it is said once each.
func TestRecorder(t *testing.T) {
	t.Parallel()
	server, c := client(t)
	sent, denied := make(chan string, 9), make(chan error, 9)
	var refuse atomic.Bool
	server.Handle(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		sent <- r.URL.Path + " " + string(body)
		if refuse.Load() {
			plugintest.WriteStatus(w, http.StatusForbidden, "no")
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e","namespace":"shop"}}`)
		return true
	})
	events, stop := c.Recorder("node-1", func(err error) { denied <- err })
	defer stop()
	pod := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "cart-0", UID: "u1"}
	events.Event(pod, corev1.EventTypeNormal, "MeshEnrolled", "it is in")
	select {
	case got := <-sent:
		assert.True(t, strings.HasPrefix(got, "/api/v1/namespaces/shop/events "), got)
		for _, part := range []string{"MeshEnrolled", "it is in", "cart-0", "u1", "meshcni-node", "node-1"} {
			assert.Contains(t, got, part)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
	}
	refuse.Store(true)
	events.Event(pod, corev1.EventTypeWarning, "MeshHandOverFailed", "it is not")
	select {
	case err := <-denied:
		assert.True(t, apierrors.IsForbidden(err))
	case <-time.After(20 * time.Second):
		t.Fatal("not denied")
	}
}
