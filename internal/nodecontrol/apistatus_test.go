package nodecontrol_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

func apiStatus(t *testing.T) (*plugintest.APIServer, *nodecontrol.APIStatus) {
	t.Helper()
	server := plugintest.NewAPIServer(t)
	c, err := nodecontrol.NewAPIStatus(&rest.Config{Host: server.URL(), BearerToken: server.Token(), TLSClientConfig: rest.TLSClientConfig{CAData: server.CA()}})
	require.NoError(t, err)
	return server, c
}

// TestAPIStatus: the annotation of that pod, and of no other of its name.
func TestAPIStatus(t *testing.T) {
	t.Parallel()
	server, c := apiStatus(t)
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
	assert.ErrorContains(t, err, "write annotation ambient.istio.io/redirection of pod shop/cart-0")
}
