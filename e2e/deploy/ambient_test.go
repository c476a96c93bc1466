package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

var ambientOn = values{"ambient": values{"enabled": true}}

// TestAmbientRights: what the agent may do for pods of a node's proxy is in deploy/rbac, and without them it is not granted.
func TestAmbientRights(t *testing.T) {
	t.Parallel()
	all := mustRender(t, ambientOn.with(values{"detect": values{"enabled": false}}))
	want, got := map[string]any{}, map[string]any{}
	for _, o := range rbacFile(t, "ambient") {
		want[o.GetKind()] = rights(o)
	}
	for _, o := range all {
		if o.GetName() == "meshcni-ambient" {
			got[o.GetKind()] = rights(o)
			assert.Equal(t, "ambient", o.GetLabels()["app.kubernetes.io/component"])
		}
	}
	assert.Equal(t, want, got)
	assert.Contains(t, one[rbacv1.ClusterRole](t, all, "ClusterRole", "meshcni-plugin").Rules,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}}, "labels of namespaces decide")
	for _, o := range granting(mustRender(t, nil)) {
		assert.NotEqual(t, "meshcni-ambient", o.GetName(), o.GetKind())
	}
}

// TestAmbientTakesOrdinaryPods: those that have what the container runtimes grant by default, unless that is not wanted. Pods with
// sidecars on the same node are refused as they are without ambient.
func TestAmbientTakesOrdinaryPods(t *testing.T) {
	t.Parallel()
	config := configOf(t, mustRender(t, ambientOn))
	assert.Equal(t, true, config["refuse-proxy-uid"])
	assert.NotContains(t, config, "refuse-net-raw")
	assert.Equal(t, true, configOf(t, mustRender(t, ambientOn.with(values{"refuseNetRaw": true})))["refuse-net-raw"])
}

// TestAmbientAndDetection: detection reads the labels that decide between ambient and a sidecar, and only where a pod may have both:
// pods with Istio's sidecar say so themselves.
func TestAmbientAndDetection(t *testing.T) {
	t.Parallel()
	for dialect, reads := range map[string]bool{"istio": false, "kuma": true, "ambient": false} {
		found := false
		for _, o := range granting(mustRender(t, ambientOn.with(values{"dialect": dialect}))).of("ClusterRole") {
			found = found || o.GetName() == "meshcni-repair-namespaces"
		}
		assert.Equal(t, reads, found, dialect)
	}
}

// TestAmbientPrivileges: the agent and what uninstalls a node have what entering pods takes, and the proxy's directory; not more.
func TestAmbientPrivileges(t *testing.T) {
	t.Parallel()
	for backend, capabilities := range map[string][]corev1.Capability{
		"auto":            {"DAC_OVERRIDE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"},
		"iptables-legacy": {"DAC_OVERRIDE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"},
		"iptables-nft":    {"DAC_OVERRIDE", "NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"},
		"nftables":        {"DAC_OVERRIDE", "NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"},
	} {
		all := mustRender(t, ambientOn.with(values{"backend": backend}).with(set("ambient.zdsSocket", "/var/run/mesh/proxy/agent.sock")))
		agent := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template.Spec
		uninstall := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-uninstall").Spec.Template.Spec
		for name, pod := range map[string]corev1.PodSpec{"agent": agent, "uninstall": uninstall} {
			c := pod.Containers[0]
			assert.ElementsMatch(t, capabilities, c.SecurityContext.Capabilities.Add, "%s, %s", name, backend)
			assert.False(t, *c.SecurityContext.Privileged, name)
			assert.Equal(t, &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}, c.SecurityContext.AppArmorProfile)
			assert.True(t, pod.HostPID, "%s: namespaces are found by processes", name)
			assert.Equal(t, "/var/run/mesh/proxy DirectoryOrCreate", hostPaths(t, pod)["/var/run/mesh/proxy"])
			assert.Equal(t, []string{"--zds-socket=/var/run/mesh/proxy/agent.sock"}, flagsOf(c, "zds-socket"))
			root, _ := value(c, "MESHCNI_REPAIR_HOST_ROOT")
			assert.Equal(t, "/proc/1/root", root, name)
		}
		assert.True(t, *uninstall.AutomountServiceAccountToken, "it takes the annotation away")
		role, binding := one[rbacv1.ClusterRole](t, all, "ClusterRole", "meshcni-uninstall"), one[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding", "meshcni-uninstall")
		assert.Equal(t, one[rbacv1.ClusterRole](t, all, "ClusterRole", "meshcni-ambient").Rules, role.Rules)
		assert.Equal(t, []string{"meshcni-uninstall", "meshcni-uninstall"}, []string{binding.RoleRef.Name, binding.Subjects[0].Name})
		assert.Equal(t, []string{"post-delete", "post-delete"}, []string{role.Annotations["helm.sh/hook"], binding.Annotations["helm.sh/hook"]})
	}
}

// TestAmbientIsADialect: it comes first, unless the user has given it a place.
func TestAmbientIsADialect(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "istio", configOf(t, mustRender(t, nil))["dialect"])
	assert.Equal(t, []any{"ambient", "istio"}, configOf(t, mustRender(t, ambientOn))["dialect"])
	assert.Equal(t, []any{"ambient", "linkerd"}, configOf(t, mustRender(t, ambientOn.with(values{"dialect": "linkerd"})))["dialect"])
}
