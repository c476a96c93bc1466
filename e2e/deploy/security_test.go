package deploy_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
)

// TestPrivileges: for each mode of repair and each backend, exactly the
// capabilities that these need, the host's processes only where they are looked
// at, and nothing else of the host but directories.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	type variant struct {
		mode    repairMode
		backend string
		plain   bool // without DAC_OVERRIDE
	}
	var variants []variant
	var all []values
	for _, mode := range repairModes {
		for _, backend := range backends {
			for _, plain := range []bool{false, true} {
				variants = append(variants, variant{mode, backend, plain})
				all = append(all, values{"repair": mode.values, "backend": backend, "dacOverride": !plain})
			}
		}
	}
	for i, rendered := range renderAll(t, all) {
		v := variants[i]
		var want []corev1.Capability
		if !v.plain {
			want = append(want, "DAC_OVERRIDE")
		}
		if v.mode.enters {
			want = append(want, "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE")
			if v.backend != "nftables" {
				want = append(want, "SYS_CHROOT")
			}
			if v.backend != "nftables" && v.backend != "iptables-nft" {
				want = append(want, "NET_RAW")
			}
		}
		pod := one[appsv1.DaemonSet](t, rendered, "DaemonSet", "meshcni-node").Spec.Template.Spec
		c := pod.Containers[0]
		assert.ElementsMatch(t, want, c.SecurityContext.Capabilities.Add, "%s with %s", v.mode.name, v.backend)
		assert.Equal(t, v.mode.enters, pod.HostPID, "%s: the host's processes", v.mode.name)
		root, _ := value(c, "MESHCNI_REPAIR_HOST_ROOT")
		ok := root != ""
		assert.Equal(t, v.mode.enters && v.backend != "nftables", ok, "%s with %s: the host's programs", v.mode.name, v.backend)
		assert.Equal(t, map[bool]string{true: "/proc/1/root"}[ok], root)
		if v.mode.enters {
			assert.Equal(t, &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}, c.SecurityContext.AppArmorProfile)
		} else {
			// Asked for by name, a kubelet refuses the pod where there is no AppArmor.
			assert.Nil(t, c.SecurityContext.AppArmorProfile)
		}
		assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
		assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, c.SecurityContext.SeccompProfile.Type)
		for what, got := range map[string]*bool{
			"privileged": c.SecurityContext.Privileged, "privilege escalation": c.SecurityContext.AllowPrivilegeEscalation,
		} {
			assert.False(t, *got, "%s: %s", v.mode.name, what)
		}
		assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
		assert.True(t, pod.HostNetwork, "the agent starts without the network that it mends")
		assert.False(t, pod.HostIPC)
		assert.Len(t, pod.Containers, 1)
		assert.Empty(t, pod.InitContainers)
		assert.Equal(t, "system-node-critical", pod.PriorityClassName)
		assert.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations)
	}
}

// TestNothingIsPrivileged: not with any profile, nor by any spelling.
func TestNothingIsPrivileged(t *testing.T) {
	t.Parallel()
	var all []values
	for _, profile := range profiles(t) {
		for _, mode := range repairModes {
			all = append(all, values{"profile": profile, "repair": mode.values})
		}
	}
	for _, rendered := range renderAll(t, all) {
		text, err := yaml.Marshal(rendered)
		require.NoError(t, err)
		assert.NotRegexp(t, `(?i)privileged\w*: true|allowPrivilegeEscalation: true`, string(text))
	}
}

// TestAppArmorBefore130: then it is an annotation.
func TestAppArmorBefore130(t *testing.T) {
	t.Parallel()
	const annotation = "container.apparmor.security.beta.kubernetes.io/meshcni-node"
	for want, v := range map[string]values{
		"":                {},
		"unconfined":      {"repair": values{"mode": "repair"}},
		"runtime/default": {"appArmorProfile": values{"type": "RuntimeDefault"}},
		"localhost/mesh":  {"appArmorProfile": values{"type": "Localhost", "localhostProfile": "mesh"}},
	} {
		all := mustRender(t, v, "--kube-version", "1.29.9")
		template := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template
		assert.Equal(t, want, template.Annotations[annotation])
		assert.Nil(t, template.Spec.Containers[0].SecurityContext.AppArmorProfile)
	}
}

// TestRoles: for each mode of repair and each dialect, the rights of repair are
// those of deploy/rbac, object by object, and besides them there are only the
// plugin's and the sight of the agent's own DaemonSet and of its node, and its events about that.
func TestRoles(t *testing.T) {
	t.Parallel()
	var cases []func(objects)
	var all []values
	for _, mode := range repairModes {
		for _, name := range dialectNames {
			mesh := dialect.SetOf(builtin.All()...).Lookup(name)
			all = append(all, mode.in(name))
			cases = append(cases, func(rendered objects) {
				roles := mode.roles
				if mode.enters && mesh.ReadsNamespace(nil) {
					roles = append(slices.Clone(roles), "namespaces")
				}
				want := map[string]any{}
				for _, role := range roles {
					for _, o := range rbacFile(t, "repair-"+role) {
						want[o.GetKind()+"/"+o.GetName()] = rights(o)
					}
				}
				got := map[string]any{}
				for _, o := range granting(rendered) {
					if o.GetName() == "meshcni-repair" || strings.HasPrefix(o.GetName(), "meshcni-repair-") {
						got[o.GetKind()+"/"+byHand(o.GetName(), mode)] = rights(byHandOf(o, mode))
						assert.Equal(t, "repair", o.GetLabels()["app.kubernetes.io/component"])
					}
				}
				assert.Equal(t, want, got, "repair %s, %s", mode.name, name)
				others(t, rendered, *mesh, len(want))
			})
		}
	}
	for i, rendered := range renderAll(t, all) {
		cases[i](rendered)
	}
}

// byHand is the name that deploy/rbac has for the role of repair, one for each mode, so that several may be in a cluster.
func byHand(name string, mode repairMode) string {
	if name == "meshcni-repair" {
		return "meshcni-repair-" + mode.roles[0]
	}
	return name
}

// byHandOf is the object with that name where it refers to the role.
func byHandOf(o unstructured.Unstructured, mode repairMode) unstructured.Unstructured {
	o = *o.DeepCopy()
	if ref, ok := o.Object["roleRef"].(map[string]any); ok {
		ref["name"] = byHand(ref["name"].(string), mode)
	}
	return o
}

// others checks the roles that do not depend on repair.
func others(t testing.TB, rendered objects, mesh dialect.Dialect, repairs int) {
	t.Helper()
	want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}
	if mesh.ReadsNamespace(nil) {
		want = append(want, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}})
	}
	assert.Equal(t, want, one[rbacv1.ClusterRole](t, rendered, "ClusterRole", "meshcni-plugin").Rules)
	assert.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, ResourceNames: []string{"meshcni-node"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{namespace}, Verbs: []string{"get"}},
	}, one[rbacv1.Role](t, rendered, "Role", "meshcni-node").Rules)
	assert.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}},
		one[rbacv1.ClusterRole](t, rendered, "ClusterRole", "meshcni-node").Rules)
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "meshcni-node", Namespace: namespace}}
	assert.Equal(t, account, one[rbacv1.ClusterRoleBinding](t, rendered, "ClusterRoleBinding", "meshcni-node").Subjects)
	assert.Equal(t, account, one[rbacv1.RoleBinding](t, rendered, "RoleBinding", "meshcni-node").Subjects)
	events := one[rbacv1.Role](t, rendered, "Role", "meshcni-node-events")
	assert.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}}, events.Rules)
	assert.Equal(t, "default", events.Namespace, "where the events of nodes are")
	binding := one[rbacv1.RoleBinding](t, rendered, "RoleBinding", "meshcni-node-events")
	assert.Equal(t, account, binding.Subjects)
	assert.Equal(t, []string{"default", "meshcni-node-events"}, []string{binding.Namespace, binding.RoleRef.Name})
	count := 0
	for _, kind := range []string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
		for _, o := range granting(rendered).of(kind) {
			if o.GetAnnotations()["helm.sh/hook"] == "" {
				count++
			}
		}
	}
	for _, role := range agentRoles(rendered) {
		repairs += len(role)
	}
	assert.Equal(t, repairs+10, count, "roles and bindings")
}

// TestPluginsAccount: the plugin's account, its rights, and the agent's right to make tokens of it and of no other, are those of
// deploy/rbac, object by object, for an agent that reads no pods; with another name likewise.
func TestPluginsAccount(t *testing.T) {
	t.Parallel()
	all := mustRender(t, set("agent", "off"))
	for _, want := range rbacFile(t, "plugin") {
		var got unstructured.Unstructured
		for _, o := range all.of(want.GetKind()) {
			if o.GetName() == want.GetName() {
				got = o
			}
		}
		assert.Equal(t, rights(want), rights(got), "%s %s", want.GetKind(), want.GetName())
	}
	all = mustRender(t, values{"pluginServiceAccount": values{"name": "reader", "annotations": values{"a": "b"}}, "tokenLifetime": "1h30m"})
	account := one[corev1.ServiceAccount](t, all, "ServiceAccount", "reader")
	assert.Equal(t, map[string]string{"a": "b"}, account.Annotations)
	assert.False(t, *account.AutomountServiceAccountToken)
	assert.Equal(t, []string{"reader"}, one[rbacv1.Role](t, all, "Role", "meshcni-plugin-token").Rules[0].ResourceNames)
	reader := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "reader", Namespace: namespace}}
	assert.Equal(t, reader, one[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding", "meshcni-plugin").Subjects[:1])
	pod := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template.Spec
	assert.Equal(t, []string{"--plugin-service-account=reader", "--token-lifetime=1h30m"}, flagsOf(pod.Containers[0], "plugin-service-account", "token-lifetime"))
	assert.Equal(t, int64(5400), *ownToken(pod).ExpirationSeconds, "the agent's own")

	for _, o := range mustRender(t, values{"pluginServiceAccount": values{"create": false}}).of("ServiceAccount") {
		assert.NotEqual(t, "meshcni-plugin", o.GetName(), "somebody else's")
	}
	// Where tokens cannot be bound to nodes, the plugin has the agent's, which then needs the plugin's rights. The agent has them also
	// where the version does not tell, if it lists pods and namespaces anyway.
	for name, test := range map[string]struct {
		values  values
		version string
		want    bool
	}{
		"old":                      {nil, "1.30.14", true},
		"new":                      {nil, kubeVersion, true},
		"new, ambient":             {ambientOn, kubeVersion, true},
		"old, off":                 {values{"agent": "off"}, "1.30.14", true},
		"new, off":                 {values{"agent": "off"}, kubeVersion, false},
		"old, which writes status": {values{"dialect": "consul", "writeStatus": true}, "1.30.14", true},
		"new, which writes status": {values{"dialect": "consul", "writeStatus": true}, kubeVersion, false},
	} {
		who := one[rbacv1.ClusterRoleBinding](t, mustRender(t, test.values, "--kube-version", test.version), "ClusterRoleBinding", "meshcni-plugin").Subjects
		assert.Equal(t, "meshcni-plugin", who[0].Name, name)
		assert.Equal(t, test.want, len(who) == 2 && who[1].Name == "meshcni-node", "%s: %v", name, who)
	}
}

// ownToken is the agent's own, which no API server extends: of a lifetime of our choosing, and not mounted by itself.
func ownToken(pod corev1.PodSpec) *corev1.ServiceAccountTokenProjection {
	if *pod.AutomountServiceAccountToken {
		return nil
	}
	for _, v := range pod.Volumes {
		if v.Name == "token" {
			return v.Projected.Sources[0].ServiceAccountToken
		}
	}
	return nil
}

// TestReadyWithoutAgent: a node whose agent is away starts the pods that are outside of the mesh.
func TestReadyWithoutAgent(t *testing.T) {
	t.Parallel()
	assert.Equal(t, true, configOf(t, mustRender(t, nil))["ready-without-agent"])
	assert.Equal(t, true, configOf(t, mustRender(t, values{"hostNetwork": false}))["ready-without-agent"])
}

// TestNewAgentBesideTheOld: no node is without an agent while a new one cannot start, on whichever network.
func TestNewAgentBesideTheOld(t *testing.T) {
	t.Parallel()
	update := func(set values) *appsv1.RollingUpdateDaemonSet {
		return one[appsv1.DaemonSet](t, mustRender(t, set), "DaemonSet", "meshcni-node").Spec.UpdateStrategy.RollingUpdate
	}
	percent, none, one := intstr.FromString("10%"), intstr.FromInt32(0), intstr.FromInt32(1)
	assert.Equal(t, &appsv1.RollingUpdateDaemonSet{MaxSurge: &percent, MaxUnavailable: &none}, update(nil))
	assert.Equal(t, &appsv1.RollingUpdateDaemonSet{MaxSurge: &percent, MaxUnavailable: &none}, update(values{"hostNetwork": false}))
	own := values{"updateStrategy": values{"rollingUpdate": values{"maxUnavailable": 1}}}
	assert.Equal(t, &appsv1.RollingUpdateDaemonSet{MaxSurge: &none, MaxUnavailable: &one}, update(own), "what is set comes before it as a whole")
}

// TestWriteStatusGrantsPatch: of the status, so that the token of a node cannot change what pods run.
func TestWriteStatusGrantsPatch(t *testing.T) {
	t.Parallel()
	all := mustRender(t, values{"writeStatus": true})
	assert.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
	}, one[rbacv1.ClusterRole](t, all, "ClusterRole", "meshcni-plugin").Rules)
	assert.Equal(t, true, configOf(t, all)["write-status"])
}

func rbacFile(t testing.TB, role string) (all objects) {
	t.Helper()
	text := readAll(t, "rbac")[role+".yaml"]
	require.NotEmpty(t, text, filepath.Join("rbac", role+".yaml"))
	for _, doc := range strings.Split(text, "\n---\n") {
		o := map[string]any{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &o))
		all = append(all, unstructured.Unstructured{Object: o})
	}
	return all
}

// rights are what a role or a binding says, less its labels.
func rights(o unstructured.Unstructured) map[string]any {
	return map[string]any{"namespace": o.GetNamespace(), "rules": o.Object["rules"], "roleRef": o.Object["roleRef"], "subjects": o.Object["subjects"]}
}
