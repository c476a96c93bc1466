package kubectlcmd

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/proof"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/redirect"
)

// fakeSidecarOf is that of a mesh of this module's.
func fakeSidecarOf(name string) (fakeSidecar, error) {
	return (&cluster{Program: Program{Identity: own, Dialects: builtin.All(), Facts: facts.All()}}).fakeSidecar(name)
}

var testRun = trialRun{name: "run", namespace: "ns", lifetime: time.Minute}

// TestFakeSidecars: to each mesh its pod is one of its own, and of no other's; both families are captured, as for the user that the proxy's
// stand-in runs as; and each container is asked about the very pod that it is in.
func TestFakeSidecars(t *testing.T) {
	t.Parallel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "$(shop)"}}}
	r := testRun
	r.settings = namespace
	for _, name := range builtin.Names() {
		as, err := fakeSidecarOf(name)
		require.NoError(t, err)
		pod := r.meshed("p", "n", image{name: "i"}, as)
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			text, ok := strings.CutPrefix(c.Args[len(c.Args)-1], "--question=")
			require.True(t, ok, c.Args)
			var q proof.Question
			require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(text, "$$", "$")), &q))
			assert.Equal(t, namespace, q.Namespace)
			plan, err := dialect.SetOf(builtin.All()...).Plan(dialect.Subject{Pod: q.Pod, Namespace: q.Namespace})
			require.NoError(t, err)
			assert.Equal(t, name, plan.Dialect)
		}
		if as.proxy == "" {
			decision := dialect.SetOf(builtin.All()...).Lookup(name).Decide(pod, namespace)
			assert.True(t, decision.Selected, decision)
			continue
		}
		plan, err := dialect.SetOf(builtin.All()...).WithOptions(dialect.Options{RefuseProxyUID: true, RefuseNetRaw: true}).Plan(dialect.Subject{Pod: pod, Namespace: namespace, Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}})
		require.NoError(t, err, name)
		require.True(t, plan.Decision.Selected, name)
		assert.Equal(t, name, plan.Dialect)
		r := plan.Redirect
		assert.Equal(t, []redirect.FamilyMode{redirect.FamilyCapture, redirect.FamilyCapture}, []redirect.FamilyMode{r.IPv4, r.IPv6}, name)
		assert.Equal(t, []uint32{uint32(as.user)}, r.Proxy.UIDs, name)
		assert.EqualValues(t, cmp.Or(as.probePort, validate.DefaultProbePort), pod.Spec.Containers[0].ReadinessProbe.TCPSocket.Port.IntVal)
		assert.Empty(t, plan.Warnings, name)
		assert.Empty(t, plan.Bypasses, name)
	}
	assert.Len(t, builtin.Names(), 5)
}
