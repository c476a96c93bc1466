package deploy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// usersOwn are the options by which the user adds keys of his own to maps, or items to lists that merge by name. Helm 3 leaves these
// after an upgrade that failed; "helm rollback" takes them away.
var usersOwn = []string{"extras", "labels", "labels of ours", "volumes", "scheduling", "image", "account", "plugin's account"}

// atomic are the lists and maps that an upgrade replaces as a whole, by where they are.
func atomic(path string) bool {
	for _, end := range []string{
		".args", ".command", ".tolerations", ".add", ".drop", ".rules", ".roleRef", ".subjects", ".sources", "DuringExecution",
		".variables", ".validations", ".matchConditions", ".resourceRules",
	} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

// shape are the paths of all that is in an object, with the names of what merges by name, and not the values.
func shape(o any, path string, into map[string]bool) {
	into[path] = true
	switch o := o.(type) {
	case map[string]any:
		into[path+" {}"] = true
		for key, value := range o {
			if at := path + "." + key; atomic(at) {
				into[at] = true
			} else {
				shape(value, at, into)
			}
		}
	case []any:
		for i, item := range o {
			name := fmt.Sprint(i)
			if m, ok := item.(map[string]any); ok && m["name"] != nil {
				name = fmt.Sprint(m["name"])
			}
			shape(item, path+"["+name+"]", into)
		}
	}
}

// core are the objects of the agent's, which are there whatever is switched on; of the settings' ConfigMap the name goes with its content. A volume is
// replaced as a whole, whichever source it has, so of one only the name counts; and what is null is no different from what is set.
func core(rendered objects) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, o := range rendered {
		if o.GetAnnotations()["helm.sh/hook"] != "" {
			continue
		}
		name := o.GetName()
		if o.GetKind() == "ConfigMap" && strings.HasPrefix(name, "meshcni-node-") {
			name = "meshcni-node-HASH"
		}
		paths := map[string]bool{}
		shape(o.DeepCopy().Object, "", paths)
		found := map[string]bool{}
		for path := range paths {
			path, _, _ = strings.Cut(path, " ")
			for _, whole := range []string{".volumes[", ".affinity", ".seLinuxOptions", ".appArmorProfile", ".imagePullSecrets", ".limits", ".requests"} {
				if i := strings.Index(path, whole); i >= 0 {
					if whole == ".volumes[" {
						path = path[:i+strings.Index(path[i:], "]")+1]
					} else {
						path = path[:i+len(whole)]
					}
				}
			}
			found[path] = true
		}
		all[o.GetKind()+" "+name] = found
	}
	return all
}

// TestOneShape: whatever the values, the objects have the same fields, and containers, variables, volumes, mounts and keys of the same
// names. Helm 3 merges an upgrade with the release that was last deployed, so that what only a failed upgrade had would stay.
func TestOneShape(t *testing.T) {
	t.Parallel()
	all, names := everything(t)
	var some []values
	var called []string
	for i, name := range names {
		if !slices.ContainsFunc(usersOwn, func(own string) bool { return strings.HasSuffix(name, ", "+own) }) {
			some, called = append(some, all[i]), append(called, name)
		}
	}
	want := core(mustRender(t, nil))
	require.NotEmpty(t, want["DaemonSet meshcni-node"])
	const atOnce = 200
	for start := 0; start < len(some); start += atOnce {
		for i, rendered := range renderAll(t, some[start:min(start+atOnce, len(some))]) {
			name := called[start+i]
			got := core(rendered)
			for object, paths := range want {
				kind, _, _ := strings.Cut(object, " ")
				if got[object] == nil {
					// What somebody else makes, and what the API server does not have, is there or not for the life of a release.
					mayMiss := strings.HasSuffix(name, "accounts of others") && (strings.Contains(kind, "Role") || kind == "ServiceAccount" || strings.HasPrefix(kind, "Validating"))
					assert.True(t, mayMiss, "%s: no %s", name, object)
					continue
				}
				if strings.HasSuffix(name, "accounts of others") {
					continue
				}
				assert.Equal(t, slices.Sorted(maps.Keys(paths)), slices.Sorted(maps.Keys(got[object])), "%s: %s", name, object)
			}
			said(t, name, rendered)
		}
	}
}

// said checks that what decides on the agent's power is said, whatever the values.
func said(t testing.TB, name string, rendered objects) {
	t.Helper()
	for _, o := range rendered.of("DaemonSet") {
		if o.GetAnnotations()["helm.sh/hook"] != "" {
			continue
		}
		pod, ok, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
		require.True(t, ok && err == nil)
		for _, key := range []string{"hostPID", "hostNetwork", "hostIPC", "automountServiceAccountToken"} {
			assert.IsType(t, true, pod[key], "%s: %s", name, key)
		}
		context := pod["containers"].([]any)[0].(map[string]any)["securityContext"].(map[string]any)
		for _, key := range []string{"privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem", "runAsNonRoot"} {
			assert.IsType(t, true, context[key], "%s: %s", name, key)
		}
		for _, key := range []string{"appArmorProfile", "seLinuxOptions", "seccompProfile", "runAsUser", "runAsGroup"} {
			assert.Contains(t, context, key, name)
		}
		for _, key := range []string{"add", "drop"} {
			assert.IsType(t, []any{}, context["capabilities"].(map[string]any)[key], "%s: capabilities.%s", name, key)
		}
	}
}

// TestSettingsAreNamedByTheirContent: other settings are another ConfigMap, which the DaemonSet's pods name, so that they roll; and the pods
// have the same settings in themselves, for the time when their ConfigMap is gone.
func TestSettingsAreNamedByTheirContent(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	settings := []values{nil, {"dialect": "kuma"}, {"excludeNamespaces": []string{"a"}}, {"excludeNamespaceSelector": "a=b"}, {"pluginConfig": `{"type": "meshcni"}`}, {"ambient": values{"ipv6": false}}}
	for _, v := range settings {
		all := mustRender(t, v)
		config := settingsOf(t, all)
		names[config.Name] = true
		template := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template
		assert.Equal(t, []string{"config.yaml", "plugin.json"}, slices.Sorted(maps.Keys(config.Data)))
		assert.Equal(t, config.Data["config.yaml"], template.Annotations["meshcni.io/settings"])
		assert.Equal(t, config.Data["plugin.json"], template.Annotations["meshcni.io/plugin-config"])
		sources := template.Spec.Volumes[0].Projected.Sources
		assert.Equal(t, []string{"metadata.annotations['meshcni.io/settings']", "metadata.annotations['meshcni.io/plugin-config']"},
			[]string{sources[0].DownwardAPI.Items[0].FieldRef.FieldPath, sources[0].DownwardAPI.Items[1].FieldRef.FieldPath})
		assert.True(t, *sources[1].ConfigMap.Optional)
		assert.Empty(t, sources[1].ConfigMap.Items, "the kubelet lets the later source win, and the API server refuses paths that are named twice")
	}
	assert.Len(t, names, len(settings))
	again := settingsOf(t, mustRender(t, values{"image": values{"tag": "v9"}, "taint": values{"enabled": true}}))
	assert.True(t, names[again.Name], "what the agent does not read names nothing")
}

// granting are the objects without the roles that grant nothing, and their bindings.
func granting(all objects) (some objects) {
	empty := map[string]bool{}
	for _, o := range all {
		if rules, ok := o.Object["rules"].([]any); ok && len(rules) == 0 {
			empty[o.GetName()] = true
		}
	}
	for _, o := range all {
		if !strings.HasPrefix(o.GetAPIVersion(), "rbac.") || !empty[o.GetName()] {
			some = append(some, o)
		}
	}
	return some
}

// settingsOf is the ConfigMap that the agent's pods name.
func settingsOf(t testing.TB, all objects) corev1.ConfigMap {
	t.Helper()
	sources := agentOf(t, all).Spec.Template.Spec.Volumes[0].Projected.Sources
	return one[corev1.ConfigMap](t, all, "ConfigMap", sources[len(sources)-1].ConfigMap.Name)
}

// agentOf is the agent's DaemonSet.
func agentOf(t testing.TB, all objects) appsv1.DaemonSet {
	t.Helper()
	var agents objects
	for _, o := range all.of("DaemonSet") {
		if o.GetAnnotations()["helm.sh/hook"] == "" {
			agents = append(agents, o)
		}
	}
	require.Len(t, agents, 1)
	return one[appsv1.DaemonSet](t, agents, "DaemonSet", agents[0].GetName())
}
