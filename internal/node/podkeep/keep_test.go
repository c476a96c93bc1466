package podkeep_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/selection"
)

func largest(phase corev1.PodPhase) *corev1.Pod {
	p := overloaded(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "cart"},
			Annotations: map[string]string{"sidecar.istio.io/status": "{}"},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "istio-proxy", Args: []string{"proxy", "sidecar"}}}},
		Status: corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Message: "evicted", Reason: "Evicted"},
	})
	p.Status.Phase = phase
	return p
}

// TestKeepOfEnded: names, UID, version, phase and addresses are all that is kept of a pod whose containers have ended.
func TestKeepOfEnded(t *testing.T) {
	t.Parallel()
	all := builtin.All()
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		assert.Equal(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u", ResourceVersion: "7"},
			Status:     corev1.PodStatus{Phase: phase, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		}, podkeep.Keep(all, largest(phase)))
	}
	// What an agent wrote itself has to be taken back; what somebody else wrote there is cut.
	p := largest(corev1.PodFailed)
	p.Annotations["ambient.istio.io/redirection"], p.Annotations[corev1.MirrorPodAnnotationKey] = "enabled", strings.Repeat("a", 32)
	kept := podkeep.Keep(all, p)
	assert.Equal(t, map[string]string{"ambient.istio.io/redirection": "enabled", corev1.MirrorPodAnnotationKey: strings.Repeat("a", 32)}, kept.Annotations)
	p.Annotations["ambient.istio.io/redirection"], p.Annotations[corev1.MirrorPodAnnotationKey] = strings.Repeat("e", 200<<10), strings.Repeat("a", 200<<10)
	assert.Equal(t, map[string]string{"ambient.istio.io/redirection": "?"}, podkeep.Keep(all, p).Annotations)
}

// TestKeepOfFailedCheck: a pod that failed in an init container may be repair's to report, as long as it is small.
func TestKeepOfFailedCheck(t *testing.T) {
	t.Parallel()
	all := builtin.All()
	p := largest(corev1.PodFailed)
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "istio-validation", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 126}}}}
	kept := podkeep.Keep(all, p)
	assert.Equal(t, "{}", kept.Annotations["sidecar.istio.io/status"])
	assert.Len(t, kept.Status.InitContainerStatuses, 1)
	assert.LessOrEqual(t, podkeep.Weight(kept), 4096)

	p.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"] = strings.Repeat("1,", 100<<10)
	assert.Empty(t, podkeep.Keep(all, p).Annotations)
	require.NoError(t, podkeep.Whole(podkeep.Keep(all, p)))
}

// TestKeepOfLarge: of a large pod what a mesh reads remains; if that is large too, it is said that the rest is missing, and
// nobody can say that of a pod but Keep.
func TestKeepOfLarge(t *testing.T) {
	t.Parallel()
	all := builtin.All()
	kept := podkeep.Keep(all, largest(corev1.PodRunning))
	require.NoError(t, podkeep.Whole(kept))
	assert.Equal(t, map[string]string{"sidecar.istio.io/status": "{}"}, kept.Annotations)
	assert.Equal(t, map[string]string{"app": "cart"}, kept.Labels)
	assert.Equal(t, []string{"proxy", "sidecar"}, kept.Spec.Containers[0].Args)
	assert.Equal(t, corev1.Container{Name: "app-of-the-author"}, kept.Spec.Containers[1])

	for what, enlarge := range map[string]func(*corev1.Pod){
		"own keys": func(p *corev1.Pod) {
			p.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"] = strings.Repeat("1,", 100<<10)
		},
		"many labels":     func(p *corev1.Pod) { many(p, "example.com/%d") },
		"the proxy's env": func(p *corev1.Pod) { p.Spec.Containers[0].Env = p.Spec.Containers[1].Env },
		"many containers": func(p *corev1.Pod) {
			for i := range 1000 {
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: fmt.Sprint("c", i)})
			}
		},
	} {
		p := largest(corev1.PodPending)
		enlarge(p)
		kept := podkeep.Keep(all, p)
		require.ErrorIs(t, podkeep.Whole(kept), podkeep.ErrTooLarge, what)
		assert.Less(t, podkeep.Weight(kept), 1<<10, what)
		assert.Equal(t, "cart", kept.Name)
		assert.Equal(t, kept, podkeep.Keep(all, kept), "to keep it again makes no difference")
	}

	quiet := []dialect.Dialect{{Name: "own"}} // it does not say what it reads
	require.ErrorIs(t, podkeep.Whole(podkeep.Keep(quiet, largest(corev1.PodRunning))), podkeep.ErrTooLarge)
	forged := largest(corev1.PodRunning)
	forged.Status.Reason = "TooLarge"
	require.NoError(t, podkeep.Whole(podkeep.Keep(all, forged)))
}

func many(p *corev1.Pod, format string) {
	for i := range 3000 {
		p.Labels[fmt.Sprintf(format, i)] = "x"
	}
}

// TestKeepKnowsPolicies: a key that a Policy names is kept without a domain. A field of a Policy or a Dialect that is new has
// to be thought of here, and in Keep.
func TestKeepKnowsPolicies(t *testing.T) {
	t.Parallel()
	d := dialect.Dialect{
		Name: "own", Domains: []string{"own.example"}, Applied: map[string]string{"applied": "x"}, NodeProxy: &dialect.NodeProxy{StatusAnnotation: "told"},
		Check: dialect.Check{Container: "check"},
		Policy: selection.Policy{
			InjectKey: "inject", ForeignAnnotation: "foreign", StatusAnnotation: "status", Traces: []string{"trace"},
			Required:       []selection.Requirement{{Keys: []string{"required"}}},
			InitContainers: []string{"init"}, PrivilegedInitContainers: []string{"root"}, ProxyContainers: []string{"proxy"},
		},
	}
	p := largest(corev1.PodRunning)
	keys := []string{"applied", "told", "inject", "foreign", "status", "trace", "required", "own.example/a", "b.own.example/c"}
	p.Annotations = map[string]string{"long": strings.Repeat("x", 100<<10), "x": "y", "notown.example/a": "y"}
	for _, key := range keys {
		p.Annotations[key] = "v"
	}
	p.Spec.Containers = nil
	containers := []string{"check", "init", "root", "proxy"}
	for _, name := range containers {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name, Image: "i"})
	}
	kept := podkeep.Keep([]dialect.Dialect{d}, p)
	require.NoError(t, podkeep.Whole(kept))
	for _, key := range keys {
		assert.Equal(t, "v", kept.Annotations[key], key)
	}
	assert.Len(t, kept.Annotations, len(keys))
	for _, c := range kept.Spec.InitContainers {
		assert.Equal(t, "i", c.Image, c.Name)
	}
	assert.ElementsMatch(t, []string{
		"ExcludedNamespaces", "ExcludedNamespaceLabels", "InitContainers", "PrivilegedInitContainers", "ProxyContainers", "DisableEnv", "ProxyCommand",
		"ProxyTypes", "InjectKey", "InjectOn", "InjectOff", "InjectSelects", "ForeignAnnotation", "Selectors", "StatusAnnotation", "Required", "Decline", "Traces", "MissingProxy",
	}, fields(reflect.TypeFor[selection.Policy]()))
	assert.ElementsMatch(t, []string{
		"Name", "Policy", "Build", "Names", "NeedsNamespace", "Applied", "Configure", "Sandboxes", "Check", "NodeProxy", "Domains", "Retired", "Injected",
	}, fields(reflect.TypeFor[dialect.Dialect]()))
}

// TestNoPod: of none, nothing is kept, and there is nothing whole.
func TestNoPod(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, podkeep.Whole(nil), selection.ErrNoPod)
	assert.Nil(t, podkeep.Trim(nil))
	assert.Nil(t, podkeep.Keep(nil, nil))
}

func fields(typ reflect.Type) (names []string) {
	for i := range typ.NumField() {
		names = append(names, typ.Field(i).Name)
	}
	return names
}
