package repair_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
	"github.com/meshcni/meshcni/status"
)

// meshes configures several, with "default" a namespace whose pods ambient has, if they are without an Istio sidecar, and
// "shop" one whose pods it has not.
func meshes(a repair.Action, list ...dialect.Dialect) func(*bench, *repair.Options) {
	return func(b *bench, o *repair.Options) {
		o.Action, o.Meshes = a, dialect.SetOf(list...)
		b.cluster.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{ambient.DataplaneMode: "ambient"}}})
		b.cluster.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	}
}

func inShop(p *corev1.Pod) { p.Namespace = "shop" }

// TestChecksOfSeveralMeshes: the check of the mesh that has the pod counts, by its own name and exit code, and no other.
func TestChecksOfSeveralMeshes(t *testing.T) {
	both := func(t *testing.T) *corev1.Pod { // Istio's check passes, and Linkerd's fails because the rules are Istio's
		return with(named(t, "linkerd", "both"), func(p *corev1.Pod) {
			passed := named(t, "passed", "")
			p.Annotations["sidecar.istio.io/status"] = "{}"
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy"})
			p.Spec.InitContainers = append(p.Spec.InitContainers, passed.Spec.InitContainers...)
			p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, passed.Status.InitContainerStatuses...)
		})
	}
	for name, c := range map[string]struct {
		list    []dialect.Dialect
		pods    func(*testing.T) []*corev1.Pod
		touched []string
	}{
		"each finds its own": {[]dialect.Dialect{istio.New(), linkerd.New()}, func(t *testing.T) []*corev1.Pod {
			return []*corev1.Pod{named(t, "crash-loop", "a"), named(t, "linkerd", "b"), named(t, "passed", "c")}
		}, []string{"a", "b"}},
		"in the other order": {[]dialect.Dialect{linkerd.New(), istio.New()}, func(t *testing.T) []*corev1.Pod {
			return []*corev1.Pod{named(t, "crash-loop", "a"), named(t, "linkerd", "b"), named(t, "passed", "c")}
		}, []string{"a", "b"}},
		"who does not have it does not count": {[]dialect.Dialect{istio.New(), linkerd.New()}, func(t *testing.T) []*corev1.Pod {
			return []*corev1.Pod{both(t)}
		}, nil},
		"who has it does": {[]dialect.Dialect{linkerd.New(), istio.New()}, func(t *testing.T) []*corev1.Pod {
			return []*corev1.Pod{both(t)}
		}, []string{"both"}},
		"another mesh's exit code": {[]dialect.Dialect{istio.New(), linkerd.New()}, func(t *testing.T) []*corev1.Pod {
			return []*corev1.Pod{with(named(t, "linkerd", "a"), func(p *corev1.Pod) {
				for i := range p.Status.InitContainerStatuses {
					for _, s := range []*corev1.ContainerStateTerminated{p.Status.InitContainerStatuses[i].State.Terminated, p.Status.InitContainerStatuses[i].LastTerminationState.Terminated} {
						if s != nil {
							s.ExitCode = 126 // Istio's
						}
					}
				}
			})}
		}, nil},
		"left to the agent of the node's proxy": {[]dialect.Dialect{ambient.New(ambient.Options{}), linkerd.New(), istio.New()}, func(t *testing.T) []*corev1.Pod {
			return []*corev1.Pod{named(t, "linkerd", "a"), with(named(t, "linkerd", "b"), inShop), named(t, "crash-loop", "c")}
		}, []string{"b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, meshes(repair.ActionLabel, c.list...), c.pods(t)...)
				var touched []string
				for _, r := range b.requests() {
					if what, ok := strings.CutPrefix(r, "label "); ok {
						_, pod, _ := strings.Cut(what, "/")
						touched = append(touched, pod)
					}
				}
				assert.ElementsMatch(t, c.touched, touched)
				assert.NoError(t, b.ctl.Ready())
			})
		})
	}
}

// TestDetectionOfSeveralMeshes: each pod is told with the mesh that has it, and those of the node's proxy are not told.
func TestDetectionOfSeveralMeshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		b := start(t, func(b *bench, o *repair.Options) {
			meshes(repair.ActionNone, ambient.New(ambient.Options{}), istio.New(), linkerd.New())(b, o)
			n.detecting(repair.ActionNone)(b, o)
			n.attach(b.pod("a"), "c1", "ptp", "meshcni")
		},
			bare(t, "a"), named(t, "linkerd", "ambients"), with(named(t, "linkerd", "b"), inShop),
			with(bare(t, "outside"), func(p *corev1.Pod) { p.Namespace, p.Annotations = "shop", nil }),
			with(named(t, "linkerd", "unknown"), func(p *corev1.Pod) { p.Namespace = "gone" }),
		)
		rows := map[string]string{}
		for _, p := range b.ctl.Pods() {
			rows[p.Name] = p.Dialect + " " + string(p.State) + " " + string(p.Reason)
		}
		assert.Equal(t, map[string]string{"a": "istio captured attached", "b": "linkerd unknown no-trace", "unknown": "linkerd unknown namespace"}, rows)
	})
}

// TestDeclinePanics: of the pod for which a mesh's Decline panics nothing can be told, and nothing is done to it. Others are dealt with.
func TestDeclinePanics(t *testing.T) {
	mesh := linkerd.New()
	mesh.Policy.Decline = func(pod *corev1.Pod, _ *corev1.Container) (status.Code, string) {
		if pod.Labels["boom"] != "" {
			panic("boom")
		}
		return "", ""
	}
	boom := func(p *corev1.Pod) { p.Namespace, p.Labels = "shop", map[string]string{"boom": "yes"} }
	require.NoError(t, mesh.Validate())
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		b := start(t, func(b *bench, o *repair.Options) {
			meshes(repair.ActionLabel, mesh)(b, o)
			n.detecting(repair.ActionLabel)(b, o)
		}, with(named(t, "linkerd", "boom"), boom), with(named(t, "linkerd", "b"), inShop))
		var touched []string
		for _, r := range b.requests() {
			if strings.HasPrefix(r, "label ") {
				touched = append(touched, r)
			}
		}
		assert.Equal(t, []string{"label shop/b"}, touched)
		require.NoError(t, b.ctl.Ready())
		details := map[string]string{}
		for _, p := range b.ctl.Pods() {
			details[p.Name] = string(p.State) + " " + string(p.Reason) + ": " + p.Detail
		}
		assert.Equal(t, "unknown dialect: linkerd configuration of pod shop/boom: dialect linkerd: its Policy.Decline panics: boom", details["boom"])
		assert.NotContains(t, details["b"], "dialect", "the other is looked at as ever")
	})

	// Of meshes that the node is not configured for, the one that panics has nobody.
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		b := start(t, func(b *bench, o *repair.Options) {
			meshes(repair.ActionNone, istio.New())(b, o)
			n.detecting(repair.ActionNone)(b, o)
			o.Meshes, _ = dialect.Configure([]dialect.Dialect{istio.New(), mesh}, netconf.Config{})
		}, with(named(t, "linkerd", "boom"), boom), with(named(t, "linkerd", "b"), inShop))
		rows := map[string]string{}
		for _, p := range b.ctl.Pods() {
			rows[p.Name] = p.Dialect + " " + string(p.State) + " " + string(p.Reason)
		}
		assert.Equal(t, map[string]string{"b": "linkerd outside other-dialect"}, rows)
	})
}

// TestNodeProxysPodsAreNotProgrammed: their rules are known, and neither looked at nor written.
func TestNodeProxysPodsAreNotProgrammed(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "7f3c0a52-0000-4000-8000-000000000001"}}
	pod.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "linkerd-proxy"}}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}}
	labels := map[string]string{ambient.DataplaneMode: "ambient"}
	m := &repair.InPlace{
		Meshes: dialect.SetOf(ambient.New(ambient.Options{}), linkerd.New()), ProcRoot: t.TempDir(),
		Namespace: func(_ context.Context, name string) (*corev1.Namespace, error) {
			if name == "unread" {
				return nil, errors.New("forbidden")
			}
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, nil
		},
	}
	_, err := m.Check(t.Context(), pod)
	require.ErrorIs(t, err, repair.ErrNodeProxy)
	_, err = m.Apply(t.Context(), pod)
	require.ErrorIs(t, err, repair.ErrNodeProxy)
	rules, err := m.Rulesets(t.Context(), pod)
	require.NoError(t, err)
	require.Len(t, rules, 1)
	assert.Contains(t, rules[0].IPv4.String(), "0x539")

	pod.Namespace = "unread"
	_, err = m.Apply(t.Context(), pod)
	require.ErrorContains(t, err, "read namespace unread: forbidden")
	pod.Namespace, labels = "other", nil
	_, err = m.Apply(t.Context(), pod)
	require.ErrorContains(t, err, "find network namespace", "it is Linkerd's there, and looked for")
	pod.Spec.Containers = pod.Spec.Containers[:1]
	_, err = m.Apply(t.Context(), pod)
	require.ErrorIs(t, err, repair.ErrNotSelected)
}

func TestCriteriaOfAnotherMesh(t *testing.T) {
	_, err := repair.New(repair.Options{
		Node: "n", Meshes: dialect.SetOf(istio.New()), Criteria: map[string]repair.Criteria{"osm": {}},
		VerifyInterval: 1,
	}.On(repairtest.New()))
	require.ErrorContains(t, err, `criteria of a dialect "osm", which is not there`)
}
