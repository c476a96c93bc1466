package podkeep_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/node/podkeep"
)

// recordedPods are those of all meshes, with their namespaces.
func recordedPods(t *testing.T) map[string]dialecttest.Case {
	t.Helper()
	all := map[string]dialecttest.Case{}
	for _, dir := range []string{"fates", "fates/linkerd", "fates/consul"} {
		for name, c := range dialecttest.Recorded(t, filepath.Join("../../../testdata", dir)) {
			all[dir+"/"+name] = c
		}
	}
	kumas, err := filepath.Glob("../../../testdata/kuma/*.json")
	require.NoError(t, err)
	for _, file := range kumas {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		c := dialecttest.Case{Pod: &corev1.Pod{}, Namespace: &corev1.Namespace{}}
		require.NoError(t, json.Unmarshal(b, c.Pod))
		all[file] = c
	}
	require.Greater(t, len(all), 30)
	return all
}

// TestTrim: a trimmed pod means the same to every mesh, in every variation that one of them reads.
func TestTrim(t *testing.T) {
	t.Parallel()
	user, yes := int64(1337), true
	always := corev1.ContainerRestartPolicyAlways
	variations := map[string]func(*corev1.Pod){
		"as it is":     func(*corev1.Pod) {},
		"host network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"mirror":       func(p *corev1.Pod) { p.Annotations["kubernetes.io/config.mirror"] = "x" },
		"proxy's user": func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user} },
		"restarting init": func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "x", RestartPolicy: &always, SecurityContext: &corev1.SecurityContext{RunAsGroup: &user}})
		},
		"capabilities": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "x", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}})
		},
		"DNS": func(p *corev1.Pod) {
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}}
		},
		"ambient": func(p *corev1.Pod) {
			p.Labels, p.Annotations = map[string]string{"istio.io/dataplane-mode": "ambient"}, map[string]string{"ambient.istio.io/dns-capture": "false"}
		},
		"users": func(p *corev1.Pod) { p.Spec.HostUsers = &yes },
		"labels": func(p *corev1.Pod) {
			p.Labels = map[string]string{"sidecar.istio.io/inject": "false", "linkerd.io/control-plane-component": "x"}
		},
	}
	selected := map[string]int{}
	for name, c := range recordedPods(t) {
		for what, vary := range variations {
			pod := c.Pod.DeepCopy()
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			vary(pod)
			trimmed := podkeep.Trim(burdened(pod))
			kept := podkeep.Keep(builtin.All(), overloaded(pod))
			require.NoError(t, podkeep.Whole(kept), "%s, %s", name, what)
			require.LessOrEqual(t, podkeep.Weight(kept), 65536)
			kept.Spec.Containers = kept.Spec.Containers[:len(pod.Spec.Containers)] // without the author's, which may bypass the mesh
			for _, d := range builtin.All() {
				subject := dialect.Subject{Pod: pod, Namespace: c.Namespace, Addrs: dialecttest.Addrs()}
				for _, o := range []dialect.Options{{}, {RefuseProxyUID: true}, {RefuseNetRaw: true}} {
					want, wantErr := d.Plan(subject, o)
					for _, less := range []*corev1.Pod{trimmed, kept} {
						subject.Pod = less
						got, err := d.Plan(subject, o)
						subject.Pod = pod
						assert.Equal(t, want, got, "%s, %s, %s", name, what, d.Name)
						assert.Equal(t, wantErr, err, "%s, %s, %s", name, what, d.Name)
					}
					if want.Decision.Selected {
						selected[d.Name]++
					}
				}
			}
		}
	}
	for _, d := range builtin.All() {
		assert.NotZero(t, selected[d.Name], d.Name)
	}
}

// burdened returns a copy with much that no mesh reads.
func burdened(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].VolumeMounts = []corev1.VolumeMount{{Name: "v"}}
		pod.Spec.Containers[i].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
	}
	return pod
}

// overloaded returns a copy with as much as an API server takes, in all that no mesh reads.
func overloaded(pod *corev1.Pod) *corev1.Pod {
	pod = burdened(pod)
	long := strings.Repeat("x", 200<<10)
	pod.Annotations["example.com/long"], pod.Annotations["notistio.io/long"] = long, long
	app := corev1.Container{Name: "app-of-the-author", Command: []string{long}, Args: []string{long}, Image: "app"}
	for i := range 3000 {
		app.Env = append(app.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "x"})
		app.Ports = append(app.Ports, corev1.ContainerPort{ContainerPort: 80})
	}
	pod.Spec.Containers = append(pod.Spec.Containers, app)
	return pod
}

// TestTrimLeavesOut what is large, and what the original shares stays as it was.
func TestTrimLeavesOut(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"k": "v"}, OwnerReferences: []metav1.OwnerReference{{Name: "other"}}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	want := pod.DeepCopy()
	want.OwnerReferences = nil
	whole := burdened(pod)
	assert.Equal(t, want, podkeep.Trim(whole))
	assert.Contains(t, whole.Annotations, corev1.LastAppliedConfigAnnotation)
	assert.NotEmpty(t, whole.Spec.Containers[0].VolumeMounts)
}
