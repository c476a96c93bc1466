package repair_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
	"github.com/meshcni/meshcni/selection"
)

// byNamespace is a mesh of one's own, whose pods a label of their namespace selects, mesh=NAME. Its check is that of another.
func byNamespace(name string, check dialect.Check) dialect.Dialect {
	r := redirect.Default()
	return dialect.Dialect{
		Name: name, Names: r.Names, Check: check, Build: dialect.FromSchema(redirect.Schema{Defaults: r}),
		Policy: selection.Policy{Selectors: []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"mesh": name}}}}},
	}
}

// TestNamespaceSelects: a pod that its namespace's label selects is found by the check of that mesh, and acted on. One whose
// namespace says nothing, or cannot be read, is not, and only the latter is reported.
func TestNamespaceSelects(t *testing.T) {
	in := func(namespace string, p *corev1.Pod) *corev1.Pod {
		return with(p, func(p *corev1.Pod) { p.Namespace = namespace })
	}
	for _, action := range []repair.Action{repair.ActionLabel, repair.ActionDelete, repair.ActionRepair} {
		t.Run(string(action), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				namespaces := func(b *bench, names ...string) {
					for _, name := range names {
						b.cluster.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mesh": name}}})
					}
				}
				b := start(t, func(b *bench, o *repair.Options) {
					o.Action, o.Meshes = action, dialect.SetOf(byNamespace("first", istio.New().Check), byNamespace("second", linkerd.New().Check))
					namespaces(b, "first", "second", "neither")
				},
					in("first", named(t, "crash-loop", "a")), in("first", named(t, "passed", "healthy")), in("second", named(t, "linkerd", "b")),
					in("neither", named(t, "crash-loop", "outside")), in("unread", named(t, "crash-loop", "unknown")),
				)
				acted := func() (pods []string) {
					for _, r := range b.requests() {
						var verb, pod string
						for i := range r {
							if r[i] == ' ' {
								verb, pod = r[:i], r[i+1:]
							}
						}
						if verb == "label" || verb == "evict" || verb == "get" && action == repair.ActionRepair && pod[0] != '/' {
							pods = append(pods, pod)
						}
					}
					return pods
				}
				later := func() { // by the bubble's clock: namespaces are cached, and successors of one owner are deleted one after the other
					time.Sleep(20 * time.Minute)
					b.settle()
				}
				later()
				did := acted()
				assert.Contains(t, did, "first/a")
				assert.Contains(t, did, "second/b")
				assert.NotContains(t, did, "first/healthy")
				assert.NotContains(t, did, "neither/outside")
				assert.NotContains(t, did, "unread/unknown")
				assert.Positive(t, b.outcomes()["failed api-error"]+b.outcomes()["gone not-found"], "that it cannot be told is said: %v", b.outcomes())

				// The namespace gets the label without a change of its pods.
				b.cluster.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "neither", Labels: map[string]string{"mesh": "first"}}})
				later()
				assert.Contains(t, acted(), "neither/outside")
			})
		})
	}
}

// TestDiagnoseUndecided: without the namespace the check counts, and the finding says that the namespace is to be asked.
func TestDiagnoseUndecided(t *testing.T) {
	d := byNamespace("mine", istio.New().Check)
	f := repair.Diagnose(named(t, "crash-loop", "a"), repair.CriteriaFor(meshcni.Identity{}, d))
	assert.True(t, f.Broken && f.Undecided, "%+v", f)
	assert.Equal(t, statuscode.CheckFailed, f.Reason)
	f = repair.Diagnose(named(t, "crash-loop", "a"), repair.CriteriaFor(meshcni.Identity{}, istio.New()))
	assert.True(t, f.Broken && !f.Undecided, "%+v", f)
	d.Policy.Selectors[0].Pod = metav1.LabelSelector{MatchLabels: map[string]string{"never": "there"}}
	assert.Equal(t, statuscode.NotSelected, repair.Diagnose(named(t, "crash-loop", "a"), repair.CriteriaFor(meshcni.Identity{}, d)).Reason, "the pod alone decides")
}

// TestNeededNamespacesOfOthers: the right to read namespaces is asked for where the labels decide, also for labels alone, and where
// rules are written that inherit settings.
func TestNeededNamespacesOfOthers(t *testing.T) {
	asks := func(action repair.Action, list ...dialect.Dialect) bool {
		for _, p := range (repair.Options{Node: "n", Action: action, Meshes: dialect.SetOf(list...)}).On(repairtest.New()).Permissions() {
			if p.Resource == "namespaces" {
				return true
			}
		}
		return false
	}
	for _, action := range []repair.Action{repair.ActionLabel, repair.ActionDelete, repair.ActionRepair} {
		assert.True(t, asks(action, byNamespace("mine", istio.New().Check)), action)
		assert.Equal(t, action == repair.ActionRepair, asks(action, linkerd.New()), action)
		assert.False(t, asks(action, istio.New()), action)
	}
}

// TestInPlaceInheritsBySchema: what a schema inherits is in the rules, though the dialect says nothing of namespaces.
func TestInPlaceInheritsBySchema(t *testing.T) {
	d := byNamespace("mine", dialect.Check{})
	d.Policy.Selectors = nil
	d.Build = dialect.FromSchema(redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{
		{Field: "inbound.excludePorts", Keys: []string{"mine/skip"}, Inherited: true},
	}})
	pod := named(t, "passed", "a")
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}}
	m := &repair.InPlace{Meshes: dialect.SetOf(d)}
	_, err := m.Rulesets(t.Context(), pod)
	require.ErrorContains(t, err, "read namespace default: nothing here can")
	m.Namespace = func(context.Context, string) (*corev1.Namespace, error) {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"mine/skip": "9090"}}}, nil
	}
	rules, err := m.Rulesets(t.Context(), pod)
	require.NoError(t, err)
	assert.Contains(t, rules[0].IPv4.String(), "9090")
}
