package deploy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestAmbientReleasesFirst: before anything is deleted, each node's agent is asked to release its pods, by pods that can do nothing else
// than ask: they have no capability, no token, and see the run directory only.
func TestAmbientReleasesFirst(t *testing.T) {
	t.Parallel()
	all := mustRender(t, ambientOn.with(set("cni.runDir", "/run/other")).with(set("uninstall.timeoutSeconds", 30)))
	set := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-release")
	job := one[batchv1.Job](t, all, "Job", "meshcni-release")
	for _, annotations := range []map[string]string{set.Annotations, job.Annotations} {
		assert.Equal(t, "pre-delete", annotations["helm.sh/hook"])
	}
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	assert.Equal(t, []string{"release", "--by-agent", "--run-dir=/run/other"}, c.Args)
	assert.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, c.SecurityContext.Capabilities)
	assert.False(t, *pod.AutomountServiceAccountToken)
	assert.False(t, pod.HostPID)
	assert.True(t, pod.HostNetwork, "it starts whatever the plugin is like")
	assert.Equal(t, map[string]string{"/run/other": "/run/other DirectoryOrCreate"}, hostPaths(t, pod))
	for key, value := range set.Spec.Selector.MatchLabels {
		assert.Equal(t, value, set.Spec.Template.Labels[key])
	}
	assert.NotEqual(t, one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-uninstall").Spec.Selector, set.Spec.Selector)

	wait := job.Spec.Template.Spec.Containers[0].Args
	assert.Subset(t, wait, []string{"await-uninstall", "--first-part", "--daemonset-name=meshcni-release", "--timeout=30s"})
	account := job.Spec.Template.Spec.ServiceAccountName
	assert.Equal(t, "pre-delete,post-delete", one[corev1.ServiceAccount](t, all, "ServiceAccount", account).Annotations["helm.sh/hook"])
	role := one[rbacv1.Role](t, all, "Role", account)
	assert.Equal(t, "pre-delete,post-delete", role.Annotations["helm.sh/hook"])
	assert.Equal(t, []string{"meshcni-uninstall", "meshcni-release"}, role.Rules[0].ResourceNames)
	assert.Equal(t, "pre-delete,post-delete", one[rbacv1.RoleBinding](t, all, "RoleBinding", account).Annotations["helm.sh/hook"])

	for name, v := range map[string]values{
		"no ambient": nil, "stays": ambientOn.with(values{"uninstallOnExit": false}), "not looked after": ambientOn.with(values{"uninstall": values{"check": false}}),
	} {
		for _, o := range mustRender(t, v) {
			assert.NotEqual(t, "meshcni-release", o.GetName(), "%s: %s", name, o.GetKind())
			assert.False(t, name == "no ambient" && strings.Contains(o.GetAnnotations()["helm.sh/hook"], "pre-delete"), o.GetName())
		}
	}
}
