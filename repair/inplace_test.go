package repair_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/selection"
)

// TestWhoThePluginRefusesIsNotProgrammed: the pod's namespace is not even looked for.
func TestWhoThePluginRefusesIsNotProgrammed(t *testing.T) {
	t.Parallel()
	user := int64(istio.ProxyID)
	as := &corev1.SecurityContext{RunAsUser: &user}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "istio-proxy", SecurityContext: as}, {Name: "app", SecurityContext: as}}}}
	pod.Namespace, pod.Name, pod.UID = "shop", "cart", "7f3c0a52-0000-4000-8000-000000000001"
	pod.Annotations = map[string]string{istio.StatusAnnotation: "{}"}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}}
	m := &repair.InPlace{Meshes: dialect.SetOf(istio.New()).WithOptions(dialect.Options{RefuseProxyUID: true}), ProcRoot: t.TempDir()}

	_, err := m.Apply(t.Context(), pod)
	require.ErrorIs(t, err, repair.ErrRefused)
	require.EqualError(t, err, `the plugin refuses the pod: pod shop/cart: container "app" bypasses the mesh: it runs as the proxy's user, 1337, `+
		`whose outbound traffic is not redirected; give the application another, or the proxy a user of its own`)
	var bypass *dialect.BypassError
	require.ErrorAs(t, err, &bypass)
	_, err = m.Check(t.Context(), pod)
	require.ErrorIs(t, err, repair.ErrRefused)
	_, err = m.Check(t.Context(), nil)
	require.ErrorIs(t, err, selection.ErrNoPod)

	m = &repair.InPlace{Meshes: dialect.SetOf(istio.New()), ProcRoot: t.TempDir()}
	_, err = m.Apply(t.Context(), pod)
	require.NotErrorIs(t, err, repair.ErrRefused)
	require.ErrorContains(t, err, "find network namespace", "now it is looked for")

	pod.Annotations[istio.ExcludeInboundPorts] = "x"
	_, err = m.Apply(t.Context(), pod)
	require.ErrorIs(t, err, repair.ErrRefused, "so are pods with wrong settings")
	require.ErrorContains(t, err, istio.ExcludeInboundPorts)
}

// TestRefusalIsSaid, once, by repair and by verification.
func TestRefusalIsSaid(t *testing.T) {
	refused := fmt.Errorf("%w: container %q runs as the proxy", repair.ErrRefused, "app")
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionRepair
			b.rules.Fail(refused)
		}, named(t, "crash-loop", "a"))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]int{"failed pod-refused": 1}, b.outcomes())
		assert.Equal(t, []string{"Warning MeshRepairFailed"}, b.drainEvents())
	})
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action, c.VerifyInterval = repair.ActionRepair, 10*time.Minute
			b.rules.Fail(refused)
		}, named(t, "passed", "a"))
		time.Sleep(time.Hour)
		results := b.counter("meshcni_verifications_total")
		assert.InDelta(t, 6, results["refused"], 1)
		assert.Len(t, results, 1)
	})
}
