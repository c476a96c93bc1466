package deploy_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

var taintOn = values{"taint": values{"enabled": true, "alsoRemove": []string{"cni.istio.io/not-ready"}}}

// TestTaintRights: the controller's rights are those of deploy/rbac, object by object, for its own account; and without it there is
// nothing of it.
func TestTaintRights(t *testing.T) {
	t.Parallel()
	got := map[string]any{}
	for _, o := range mustRender(t, taintOn) {
		if o.GetLabels()["app.kubernetes.io/component"] == "taint" && strings.Contains(o.GetAPIVersion(), "rbac") {
			text, err := json.Marshal(rights(o))
			require.NoError(t, err)
			got[o.GetKind()+"/"+o.GetName()] = strings.ReplaceAll(string(text), "meshcni-node-taint", "meshcni-taint")
		}
	}
	want := map[string]any{}
	for _, o := range rbacFile(t, "taint") {
		if o.GetKind() == "ServiceAccount" {
			continue
		}
		text, err := json.Marshal(rights(o))
		require.NoError(t, err)
		want[o.GetKind()+"/"+strings.Replace(o.GetName(), "meshcni-taint", "meshcni-node-taint", 1)] = string(text)
	}
	assert.Equal(t, want, got)
	for _, o := range mustRender(t, nil) {
		assert.NotContains(t, o.GetName(), "taint")
	}
}

// TestTaintController: its pods start on nodes that have the taints, and as the agents' do, whatever is wrong with the plugin; they
// have nothing of the node; and so does what removes the taints in the end.
func TestTaintController(t *testing.T) {
	t.Parallel()
	all := mustRender(t, taintOn)
	controller := one[appsv1.Deployment](t, all, "Deployment", "meshcni-node-taint")
	pod := controller.Spec.Template.Spec
	assert.Equal(t, []corev1.Toleration{
		{Key: "meshcni.io/agent-not-ready", Operator: corev1.TolerationOpExists}, {Key: "cni.istio.io/not-ready", Operator: corev1.TolerationOpExists},
	}, pod.Tolerations)
	assert.Equal(t, []string{"--taint-key=meshcni.io/agent-not-ready", "--also-remove=cni.istio.io/not-ready", "--daemonset-name=meshcni-node", "--lease-name=meshcni-node-taint",
		"--agent-selector=app.kubernetes.io/name=meshcni,app.kubernetes.io/instance=meshcni,app.kubernetes.io/component=node", "--grace=60s", "--max-share=0.2"},
		flagsOf(pod.Containers[0], "taint-key", "also-remove", "daemonset-name", "lease-name", "agent-selector", "grace", "max-share"))
	job := one[batchv1.Job](t, all, "Job", "meshcni-taint-remove")
	assert.Equal(t, "post-delete", job.Annotations["helm.sh/hook"])
	assert.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, job.Spec.Template.Spec.Tolerations)
	for _, p := range []corev1.PodSpec{pod, job.Spec.Template.Spec} {
		c := p.Containers[0]
		assert.Equal(t, []string{"/usr/local/bin/meshcni-taint"}, c.Command)
		assert.Empty(t, p.Volumes)
		assert.Empty(t, c.SecurityContext.Capabilities.Add)
		assert.True(t, *c.SecurityContext.RunAsNonRoot && *c.SecurityContext.ReadOnlyRootFilesystem)
	}

	// Namespaces that are restricted take the controller.
	admin := server(t)
	made := podsOf(t, all.of("Deployment")[0])[0]
	restricted := values{"metadata": values{"name": "restricted", "labels": values{"pod-security.kubernetes.io/enforce": "restricted"}}}
	admin.Do(t, http.MethodPost, collection("v1", "Namespace", ""), restricted, nil)
	account := &corev1.ServiceAccount{}
	account.Name = "meshcni-node-taint"
	admin.Do(t, http.MethodPost, collection("v1", "ServiceAccount", "restricted"), account, nil)
	made.SetNamespace("restricted")
	text, err := json.Marshal(made.Object)
	require.NoError(t, err)
	assert.NoError(t, dryRun(admin, string(text)))
}

// TestAgentsTolerateTheTaint: also where the user has said which taints they tolerate. With ambient, they are ready only with a proxy.
func TestAgentsTolerateTheTaint(t *testing.T) {
	t.Parallel()
	agent := func(v values) corev1.PodSpec {
		return one[appsv1.DaemonSet](t, mustRender(t, v), "DaemonSet", "meshcni-node").Spec.Template.Spec
	}
	assert.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, agent(taintOn).Tolerations)
	some := values{"tolerations": []values{{"key": "a", "operator": "Exists"}}}
	assert.Len(t, agent(some).Tolerations, 1)
	assert.Equal(t, []corev1.Toleration{
		{Key: "a", Operator: corev1.TolerationOpExists},
		{Key: "meshcni.io/agent-not-ready", Operator: corev1.TolerationOpExists}, {Key: "cni.istio.io/not-ready", Operator: corev1.TolerationOpExists},
	}, agent(taintOn.with(some)).Tolerations)

	needs := func(v values) []string { return flagsOf(agent(v).Containers[0], "ready-needs-proxy") }
	assert.Empty(t, needs(ambientOn))
	assert.Empty(t, needs(taintOn))
	assert.Equal(t, []string{"--ready-needs-proxy=true"}, needs(taintOn.with(ambientOn)))
	assert.Empty(t, needs(taintOn.with(ambientOn).with(values{"taint": values{"needsProxy": false}})))
}
