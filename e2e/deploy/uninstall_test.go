package deploy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshcni/meshcni/cmd/nodecmd"
)

// TestNoMadeUpConfDir: a directory of the configuration that is no platform's is made by nobody, so a misspelt one is not left behind.
func TestNoMadeUpConfDir(t *testing.T) {
	t.Parallel()
	volume := func(v values, set string) (path string, kind corev1.HostPathType) {
		for _, volume := range one[appsv1.DaemonSet](t, mustRender(t, v), "DaemonSet", set).Spec.Template.Spec.Volumes {
			if volume.Name == "cni-conf" {
				return volume.HostPath.Path, *volume.HostPath.Type
			}
		}
		return "", ""
	}
	for _, known := range []values{{}, {"profile": "k3s"}, {"cni": values{"confDir": "/etc/cni/net.d"}}} {
		_, kind := volume(known, "meshcni-node")
		assert.Equal(t, corev1.HostPathDirectoryOrCreate, kind, "%v: it may come with the network", known)
	}
	own := values{"profile": "k3s", "cni": values{"confDir": "/etc/cni/nett.d"}}
	path, kind := volume(own, "meshcni-node")
	assert.Equal(t, "/etc/cni/nett.d", path)
	assert.Equal(t, corev1.HostPathDirectory, kind)
	path, _ = volume(own, "meshcni-uninstall")
	assert.Equal(t, "/etc/cni", path)
}

// TestUninstallOfEveryNode: what cleans the nodes works on the directories and with the template that the agent installs with,
// has no token and no right that the agent lacks, and goes to every Linux node; what waits for it runs as nobody, may see no more
// than it has to, and does not go to a node that is down. All of it is there for the removal only.
func TestUninstallOfEveryNode(t *testing.T) {
	t.Parallel()
	template := `{"type": "mesh-cni", "x": "$(X)"}`
	for name, v := range map[string]values{
		"": {}, "k3s": {"profile": "k3s"}, "bottlerocket": {"profile": "bottlerocket"}, "rke2": {"profile": "rke2"},
		"agents elsewhere": {"nodeSelector": values{"a/b": "c"}}, "template": {"pluginConfig": template}, "own file": chaining["own file"],
		"ambient": ambientOn, "ambient, further": options["ambient"].with(values{"backend": "nftables", "profile": "talos"}),
	} {
		ambient := v["ambient"] != nil // whose pods are taken out of the proxy's care, which takes what the agent has
		all := mustRender(t, v)
		agent := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template.Spec
		set := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-uninstall")
		pod := set.Spec.Template.Spec
		c, places := pod.Containers[0], []string{"cni-bin-dir", "cni-conf-dir", "cni-cache-dir", "cni-conf-name", "chained", "own-file", "run-dir", "nri-plugin-dir"}
		assert.Equal(t, flagsOf(agent.Containers[0], places...), flagsOf(c, places...), name)
		assert.Equal(t, "uninstall", c.Args[0])
		text, _ := value(c, "CNI_NETWORK_CONFIG")
		assert.Equal(t, v["pluginConfig"] != nil, text == template, name)
		program := nodecmd.Program{Env: func(name string) (string, bool) {
			if name == "NODE_NAME" && ambient {
				return "node-1", slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" })
			}
			return value(c, name)
		}}
		settings, err := program.Parse(c.Args)
		require.NoError(t, err, name)
		assert.Equal(t, namespace, settings.Plugin.PodNamespace)
		agents := hostPaths(t, agent)
		delete(agents, "/var/run/nri") // an uninstall has nothing to say to the runtime
		for host, mount := range agents {
			assert.Contains(t, hostPaths(t, pod)[host], mount[:len("/host")], "%s: %s", name, host)
		}
		assert.Equal(t, agent.Containers[0].SecurityContext, c.SecurityContext, name)
		assert.Equal(t, ambient, *pod.AutomountServiceAccountToken)
		assert.Equal(t, agent.HostPID, pod.HostPID)
		assert.Equal(t, flagsOf(agent.Containers[0], "zds-socket"), flagsOf(c, "zds-socket"))
		assert.True(t, pod.HostNetwork, "it starts whatever the plugin is like")
		assert.Equal(t, map[string]string{"kubernetes.io/os": "linux"}, pod.NodeSelector, "also where no agent may be")
		assert.Equal(t, agent.Affinity, pod.Affinity, "virtual nodes have none")
		assert.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations)
		for key, label := range set.Spec.Selector.MatchLabels {
			assert.Equal(t, label, set.Spec.Template.Labels[key])
		}

		job := one[batchv1.Job](t, all, "Job", "meshcni-uninstall").Spec.Template.Spec
		assert.True(t, *job.Containers[0].SecurityContext.RunAsNonRoot)
		assert.Empty(t, job.Volumes)
		for _, toleration := range job.Tolerations {
			assert.NotEmpty(t, toleration.Key)
			if slices.Contains([]string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}, toleration.Key) {
				assert.Equal(t, corev1.TaintEffectNoExecute, toleration.Effect)
				assert.Zero(t, *toleration.TolerationSeconds)
			}
		}
		if agent.Affinity != nil {
			assert.Equal(t, agent.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, job.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}
		tests := []string{"meshcni-test"}
		if ambient {
			tests = append(tests, "meshcni-test-ambient")
		}
		assert.Contains(t, one[batchv1.Job](t, all, "Job", "meshcni-uninstall").Spec.Template.Spec.Containers[0].Args, "--delete-pod="+strings.Join(tests, ","))
		sets := []string{"meshcni-uninstall"}
		if ambient {
			sets = append(sets, "meshcni-release")
		}
		assert.Equal(t, []rbacv1.PolicyRule{
			{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, ResourceNames: sets, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: tests, Verbs: []string{"delete"}},
		}, one[rbacv1.Role](t, all, "Role", "meshcni-uninstall").Rules)
		hooks := 0
		for _, o := range all {
			if o.GetName() == "meshcni-uninstall" {
				hooks++
				phases := strings.TrimPrefix(o.GetAnnotations()["helm.sh/hook"], map[bool]string{true: "pre-delete,"}[ambient])
				assert.Equal(t, "post-delete", phases, o.GetKind())
			}
		}
		assert.Equal(t, map[bool]int{false: 5, true: 7}[ambient], hooks)
	}
}

// TestNoUninstallOfEveryNode: where the plugin is to stay, where nobody is to ask, and where roles are for others to make.
func TestNoUninstallOfEveryNode(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]values{
		"stays": {"uninstallOnExit": false}, "turned off": {"uninstall": values{"check": false}}, "roles of others": {"rbac": values{"create": false}},
	} {
		for _, o := range mustRender(t, v) {
			assert.NotEqual(t, "meshcni-uninstall", o.GetName(), "%s: %s", name, o.GetKind())
		}
	}
}

// TestNames: other names are everywhere where the first ones were, and selectors still find what they are for.
func TestNames(t *testing.T) {
	t.Parallel()
	all := mustRender(t, values{"nameOverride": "mesh", "fullnameOverride": "meshcni-node-blue", "metrics": values{"service": values{"enabled": true}}})
	ds := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node-blue")
	assert.Equal(t, "mesh", ds.Spec.Selector.MatchLabels["app.kubernetes.io/name"])
	for key, label := range ds.Spec.Selector.MatchLabels {
		assert.Equal(t, label, ds.Spec.Template.Labels[key])
	}
	c := ds.Spec.Template.Spec.Containers[0]
	watched, _ := value(c, "MESHCNI_DAEMONSET_NAME")
	assert.Equal(t, "meshcni-node-blue", watched)
	assert.Contains(t, one[rbacv1.Role](t, all, "Role", "meshcni-node-blue").Rules[0].ResourceNames, watched)
	assert.Regexp(t, "^meshcni-node-blue-[0-9a-f]{10}$", settingsOf(t, all).Name)
	services := all.of("Service")
	require.Len(t, services, 1)
	service := one[corev1.Service](t, all, "Service", services[0].GetName())
	assert.Equal(t, ds.Spec.Selector.MatchLabels, service.Spec.Selector)
	assert.Contains(t, one[batchv1.Job](t, all, "Job", "meshcni-uninstall-blue").Spec.Template.Spec.Containers[0].Args, "--agent-prefix=meshcni-node-blue-")
}

// TestGlobalRegistry: a parent's registry comes before the chart's own, in each pod.
func TestGlobalRegistry(t *testing.T) {
	t.Parallel()
	all := mustRender(t, values{"image": values{"registry": "own.example", "tag": "v9"}, "global": values{"imageRegistry": "mirror.example:5000", "other": true}})
	const want = "mirror.example:5000/meshcni/meshcni:v9"
	for _, name := range []string{"meshcni-node", "meshcni-uninstall"} {
		assert.Equal(t, want, one[appsv1.DaemonSet](t, all, "DaemonSet", name).Spec.Template.Spec.Containers[0].Image)
	}
	assert.Equal(t, want, one[batchv1.Job](t, all, "Job", "meshcni-uninstall").Spec.Template.Spec.Containers[0].Image)
	assert.Equal(t, want, one[corev1.Pod](t, all, "Pod", "meshcni-test").Spec.Containers[0].Image)
}

// TestExtraVolumes: they come beside the chart's own, and what else a DaemonSet's owner may say is there.
func TestExtraVolumes(t *testing.T) {
	t.Parallel()
	ds := one[appsv1.DaemonSet](t, mustRender(t, options["volumes"]), "DaemonSet", "meshcni-node").Spec
	pod := ds.Template.Spec
	assert.True(t, slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "scratch" && v.EmptyDir != nil }))
	assert.Contains(t, pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "scratch", MountPath: "/scratch"})
	assert.Equal(t, corev1.DNSDefault, pod.DNSPolicy)
	require.NotNil(t, ds.RevisionHistoryLimit)
	assert.Zero(t, *ds.RevisionHistoryLimit)
	assert.Equal(t, int32(10), *one[appsv1.DaemonSet](t, mustRender(t, nil), "DaemonSet", "meshcni-node").Spec.RevisionHistoryLimit)
}

// TestNamespacesByLabel: the selector reaches the plugin's settings, and with it the right to read what it is about.
func TestNamespacesByLabel(t *testing.T) {
	t.Parallel()
	reads := func(o objects, name string) bool {
		return slices.ContainsFunc(o.of("ClusterRole"), func(role unstructured.Unstructured) bool {
			return role.GetName() == name && slices.ContainsFunc(one[rbacv1.ClusterRole](t, o, "ClusterRole", name).Rules, func(r rbacv1.PolicyRule) bool {
				verbs := []string{"get"}
				if strings.HasSuffix(name, "-repair-namespaces") {
					verbs = []string{"list", "watch"}
				}
				return slices.Equal(r.Resources, []string{"namespaces"}) && slices.Equal(r.Verbs, verbs)
			})
		})
	}
	selector := values{"excludeNamespaceSelector": "mesh in (off,no),!keep"}
	all := mustRender(t, selector)
	assert.Equal(t, "mesh in (off,no),!keep", configOf(t, all)["exclude-namespace-selector"])
	assert.True(t, reads(all, "meshcni-plugin"))
	assert.True(t, reads(all, "meshcni-repair-namespaces"), "detection")
	assert.False(t, reads(mustRender(t, selector.with(never).with(values{"detect": values{"enabled": false}})), "meshcni-repair-namespaces"), "nothing is repaired")
	assert.True(t, reads(mustRender(t, selector.with(values{"repair": values{"mode": "label"}})), "meshcni-repair-namespaces"))
	assert.NotContains(t, configOf(t, mustRender(t, nil)), "exclude-namespace-selector")
	assert.False(t, reads(mustRender(t, nil), "meshcni-plugin"))
	other := mustRender(t, acme.with(values{"rbac": values{"namespaces": true}}))
	assert.True(t, reads(other, "acme-plugin") && reads(other, "acme-repair-namespaces"), "a mesh of others, which may need it")
	assert.False(t, reads(mustRender(t, acme), "acme-plugin"))
}

// TestCarefulDefaults: what a careful operator would turn on first is on.
func TestCarefulDefaults(t *testing.T) {
	t.Parallel()
	assert.Equal(t, true, configOf(t, mustRender(t, nil))["refuse-proxy-uid"])
	assert.NotContains(t, configOf(t, mustRender(t, values{"refuseProxyUID": false})), "refuse-proxy-uid")
}
