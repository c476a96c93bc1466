package integration

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/selection"
)

// TestOwnMeshByNamespace: with the rights of deploy/rbac alone, the broken pods of a mesh of one's own are labelled where the label of
// their namespace selects them, and only there.
func TestOwnMeshByNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside := w.Namespace(t)
	var ns corev1.Namespace
	w.Do(t, http.MethodGet, "/api/v1/namespaces/"+w.ns, nil, &ns)
	ns.Labels["own/mesh"] = "on"
	w.Do(t, http.MethodPut, "/api/v1/namespaces/"+w.ns, ns, nil)

	r := redirect.Default()
	own := dialect.Dialect{
		Name: "own", Names: r.Names, Check: istio.New().Check, Build: dialect.FromSchema(redirect.Schema{Defaults: r}),
		Policy: selection.Policy{Selectors: []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"own/mesh": "on"}}}}},
	}
	w.Create(t, podFrom(t, "crash-loop", outside, "theirs", w.node))
	ours := w.make(t, "crash-loop", "ours")
	ag := runAgent(t, w.s, w.node, func(o *repair.Options) { o.Action, o.Meshes = "label", dialect.SetOf(own) })
	eventually(t, "labelled", func() bool {
		return w.Pod(t, w.ns, ours.Name).Labels[meshcni.Identity{}.Key("not-redirected")] == "true"
	})
	// One that is seen later is labelled too, so the other has been passed over, and not just not looked at yet.
	late := w.make(t, "job-failed", "late")
	eventually(t, "labelled", func() bool {
		return w.Pod(t, w.ns, late.Name).Labels[meshcni.Identity{}.Key("not-redirected")] == "true"
	})
	assert.Empty(t, w.Pod(t, outside, "theirs").Labels[meshcni.Identity{}.Key("not-redirected")])
	assert.Equal(t, map[string]int{"labelled check-failed": 2}, ag.outcomes())
	assert.NoError(t, ag.ctl.Ready())
}
