package migrate

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// refused is what the chart's default agent says: it may not enter pods.
const refused = "enter: operation not permitted"

// TestMigrateEnters: one pod a node reads the rules of all pods that the agent could not read, also where there is no agent of ours yet.
func TestMigrateEnters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.peer(t, "istio-cni")
	base := kubectltest.Sound("a")
	readable := ""
	w.Node(t, "a", func(path string) (any, error) {
		switch path {
		case agentapi.NodePath:
			return base(path)
		case readable:
			return agentapi.Pod{}, nil
		}
		return agentapi.Pod{LiveError: refused}, nil
	})
	w.Node(t, "b", nil)
	cart, old, bare := w.MeshPod(t, "shop", "cart", "a"), w.MeshPod(t, "shop", "old", "a"), w.MeshPod(t, "shop", "bare", "a")
	gone, far := w.MeshPod(t, "shop", "gone", "a"), w.MeshPod(t, "shop", "far", "b")
	w.MeshPod(t, "shop", "wrong", "a", func(p *corev1.Pod) { p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "80a" })
	w.MeshPod(t, "shop", "pending", "")
	// More pods than a page has stand between this one and the others: still one pod a node is made.
	first := w.MeshPod(t, "a", "first", "a")
	w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", "many"), nil)
	kubetest.Parallel(apilist.PageSize, func(i int) {
		assert.NoError(t, w.Try(http.MethodPost, "/api/v1/namespaces/many/pods", &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "i"}}},
		}, nil))
	})
	readable = agentapi.PodPath + string(bare.UID)
	k := kubectltest.NewKubelet(t, w.World)
	k.Next(kubectltest.Looks(t, map[string]agentapi.Pod{string(cart.UID): {Live: liveRules(t, cart)}, string(old.UID): {}, string(far.UID): {Live: liveRules(t, far)}, string(first.UID): {Live: liveRules(t, first)}}))
	verdicts := func(out string) map[string]migration.Verdict {
		all := map[string]migration.Verdict{}
		for _, g := range kubectltest.Decode[migration.Report](t, out).Groups {
			for _, pod := range g.Pods {
				all[strings.TrimPrefix(pod, "shop/")] = g.Verdict
			}
		}
		return all
	}

	_, _, errs := w.run(t, "-o", "json")
	assert.Contains(t, errs, "the live rules of 6 pods are not known; --enter reads them, by a short-lived pod on the node\n")
	assert.Empty(t, k.Made)

	code, out, errs := w.run(t, "-o", "json", "--enter")
	assert.Equal(t, exitWrong, code)
	pod := k.One(t)
	assert.ElementsMatch(t, []string{string(first.UID), string(cart.UID), string(old.UID), string(gone.UID)}, kubectltest.UIDs(pod), "not what the agent has read, nor what is refused anyway")
	assert.Contains(t, errs, " on node a to read the live rules of 4 pods\n")
	assert.Empty(t, k.Left(t))
	is := verdicts(out)
	assert.Equal(t, migration.Same, is["cart"])
	assert.Equal(t, migration.Differs, is["old"], "it has no rules")
	assert.Equal(t, migration.Differs, is["bare"])
	assert.Len(t, is, 8)
	assert.Contains(t, out, "--enter: no process of the pod runs")
	assert.Contains(t, out, "--image names one")

	k.Next(k.Runs)
	_, out, errs = w.run(t, "-o", "json", "--enter", "--image", "registry.example/node:1", "--agent-namespace", "meshcni-system")
	assert.Contains(t, errs, " on node b to read the live rules of pod shop/far\n")
	assert.Len(t, k.Made, 2)
	for _, pod := range k.Made {
		assert.Equal(t, "registry.example/node:1", pod.Spec.Containers[0].Image)
		assert.Len(t, pod.Spec.Volumes, map[string]int{"a": 1, "b": 0}[pod.Spec.NodeName], "without an agent there are no records")
	}
	assert.Equal(t, migration.Same, verdicts(out)["far"])
	assert.Empty(t, k.Left(t))
}
