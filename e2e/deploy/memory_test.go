package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestMemoryLimit: what a pod's author can make the agent take has a bound that is
// not the node's; an operator may set another one, or none.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	limit := func(v values) string {
		set := one[appsv1.DaemonSet](t, mustRender(t, v), "DaemonSet", "meshcni-node")
		limits := set.Spec.Template.Spec.Containers[0].Resources.Limits
		if _, ok := limits[corev1.ResourceMemory]; !ok {
			return "none"
		}
		assert.NotContains(t, limits, corev1.ResourceCPU, "an agent that is throttled leaves pods waiting")
		return limits.Memory().String()
	}
	assert.Equal(t, "384Mi", limit(nil))
	assert.Equal(t, "1Gi", limit(values{"resources": values{"limits": values{"memory": "1Gi"}}}))
	assert.Equal(t, "none", limit(values{"resources": values{"limits": values{"memory": nil}}}))
}
