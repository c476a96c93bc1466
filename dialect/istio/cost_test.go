package istio_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/istio"
)

// TestCostOfAnOrdinaryPod: each ADD asks whether the pod's namespace is needed, and decides. No YAML is read for a pod without any, and
// the schema is read once.
func TestCostOfAnOrdinaryPod(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{istio.StatusAnnotation: "{}"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy", Args: []string{"proxy", "sidecar"}}}},
	}
	mesh := istio.New()
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	assert.Less(t, testing.AllocsPerRun(20, func() {
		require.False(t, mesh.ReadsNamespace(pod))
		_, err := mesh.Redirect(pod, nil, addrs)
		require.NoError(t, err)
	}), 250.0)
}
