package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// policies makes the chart's admission policies for the namespace's accounts, under names of their own, and returns their paths.
func (w *tokens) policies(t testing.TB) (paths []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "manifests", "install.yaml"))
	require.NoError(t, err)
	renamed := strings.NewReplacer("system:serviceaccount:"+agentNamespace+":", "system:serviceaccount:"+w.ns+":", `"`+agentNamespace+`"`, `"`+w.ns+`"`, agentNamespace+"/", w.ns+"/")
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var meta metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal([]byte(doc), &meta))
		if !strings.HasPrefix(meta.Kind, "ValidatingAdmissionPolicy") {
			continue
		}
		object := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(renamed.Replace(doc)), &object))
		object["metadata"] = map[string]any{"name": meta.Name + "-" + w.ns}
		if spec := object["spec"].(map[string]any); spec["policyName"] != nil {
			spec["policyName"] = meta.Name + "-" + w.ns
		}
		path := "/apis/" + meta.APIVersion + "/" + map[bool]string{true: "validatingadmissionpolicybindings", false: "validatingadmissionpolicies"}[strings.HasSuffix(meta.Kind, "Binding")]
		w.Do(t, http.MethodPost, path+"?fieldValidation=Strict", object, nil)
		paths = append(paths, path+"/"+meta.Name+"-"+w.ns)
	}
	require.NotEmpty(t, paths)
	return paths
}

// TestAutoEvict: the built agent with --repair=auto, which is the chart's default, and the right to evict. Without the chart's policies nothing is
// evicted, and the agent says why; with them the pods that lost the plugin are, and no others; and without them again no more.
func TestAutoEvict(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	w := newTokens(t)
	w.grant(t, "repair-auto")
	w.run(t, "--detect=true", "--repair=auto")
	own, err := os.ReadFile(filepath.Join(w.dirs.sa, "token"))
	require.NoError(t, err)
	start := func(name, node string, plugins ...string) *corev1.Pod {
		pod := podFrom(t, "no-check", w.ns, name, node)
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID("of-" + name), Controller: &yes}}
		pod = w.Create(t, pod)
		attached(t, w.dirs.cache, pod, plugins...)
		return pod
	}
	is := func(pod *corev1.Pod) bool {
		now := &corev1.Pod{}
		return w.Try(http.MethodGet, kubetest.PodPath(w.ns, pod.Name), nil, now) == nil && now.UID == pod.UID && now.DeletionTimestamp == nil
	}
	evict := func(pod *corev1.Pod) int {
		e := &policyv1.Eviction{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: w.ns}}
		return w.try(t, string(own), http.MethodPost, kubetest.PodPath(w.ns, pod.Name)+"/eviction?dryRun=All", e)
	}
	lost, well, theirs := start("lost", w.node, "ptp"), start("well", w.node, "ptp", "meshcni"), start("theirs", w.node, "ptp", "istio-cni")
	away := start("away", "another-node", "ptp")
	unmanaged := podFrom(t, "no-check", w.ns, "unmanaged", w.node)
	unmanaged.OwnerReferences = nil
	unmanaged = w.Create(t, unmanaged)
	attached(t, w.dirs.cache, unmanaged, "ptp")

	eventually(t, "the agent says that it does not evict", func() bool {
		return strings.Contains(w.agent.get(t, "/readyz"), "not-evicting: ")
	})
	assert.Contains(t, w.agent.get(t, "/readyz"), "has no policy by which the agent may evict pods of its own node only; set the chart's admission.enabled to true")
	eventually(t, "the pods are found", func() bool { return strings.Contains(w.agent.get(t, "/readyz"), "uncaptured: 3 of") })
	assert.True(t, is(lost))
	assert.Equal(t, http.StatusCreated, evict(away), "by its role alone a token reaches all nodes")

	paths := w.policies(t)
	eventually(t, "the pod that lost the plugin is evicted", func() bool { return !is(lost) })
	assert.NotContains(t, w.agent.get(t, "/readyz"), "not-evicting")
	assert.Equal(t, http.StatusForbidden, evict(away), "and so the policies refuse it")
	eventually(t, "the one that nothing would make anew is spared", func() bool { return strings.Contains(w.agent.get(t, "/metrics"), `outcome="spared"`) })
	for _, pod := range []*corev1.Pod{well, theirs, away, unmanaged} {
		assert.True(t, is(pod), pod.Name)
	}

	told := func() int { return strings.Count(w.agent.log.String(), "are not evicted") }
	before := told()
	for _, path := range paths {
		w.Do(t, http.MethodDelete, path, nil, nil)
	}
	eventually(t, "nothing refuses it any more", func() bool { return evict(away) == http.StatusCreated })
	eventually(t, "the agent has seen that they went", func() bool { return told() == before+1 })
	again := start("again", w.node, "ptp")
	eventually(t, "it is found", func() bool { return strings.Contains(w.agent.get(t, "/metrics"), `meshcni_pods{state="uncaptured"} 3`) })
	assert.True(t, is(again))
	assert.Contains(t, fmt.Sprint(w.s.Calls(t, w.agentUser)), "create pods/eviction")
}
