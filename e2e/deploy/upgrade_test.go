package deploy_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// live are the objects of a release on the server as somebody has made them: less what the server adds to each. The settings' ConfigMap is
// the one that the agents name; those of upgrades that failed are nobody's.
func live(t testing.TB, admin *kubetest.Admin, namespace string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for apiVersion, kinds := range map[string]string{
		"v1":                              "ConfigMap ServiceAccount Service",
		"apps/v1":                         "DaemonSet",
		"rbac.authorization.k8s.io/v1":    "Role RoleBinding ClusterRole ClusterRoleBinding",
		"admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
	} {
		for kind := range strings.FieldsSeq(kinds) {
			var list unstructured.UnstructuredList
			admin.Do(t, http.MethodGet, collection(apiVersion, kind, "")+"?labelSelector=app.kubernetes.io/instance=meshcni,app.kubernetes.io/managed-by=Helm", nil, &list)
			for _, o := range list.Items {
				for _, field := range [][]string{
					{"status"}, {"metadata", "uid"}, {"metadata", "resourceVersion"}, {"metadata", "creationTimestamp"}, {"metadata", "generation"}, {"metadata", "managedFields"},
					{"metadata", "annotations", "deprecated.daemonset.template.generation"},
				} {
					unstructured.RemoveNestedField(o.Object, field...)
				}
				all[kind+" "+o.GetNamespace()+"/"+o.GetName()] = o.Object
			}
		}
	}
	agents := all["DaemonSet "+namespace+"/meshcni-node"]
	require.NotNil(t, agents)
	volumes, _, err := unstructured.NestedSlice(agents, "spec", "template", "spec", "volumes")
	require.NoError(t, err)
	sources := volumes[slices.IndexFunc(volumes, func(v any) bool { return v.(map[string]any)["name"] == "config" })].(map[string]any)["projected"].(map[string]any)["sources"].([]any)
	settings := sources[len(sources)-1].(map[string]any)["configMap"].(map[string]any)["name"].(string)
	require.Contains(t, all, "ConfigMap "+namespace+"/"+settings)
	maps.DeleteFunc(all, func(name string, _ map[string]any) bool {
		return strings.HasPrefix(name, "ConfigMap "+namespace+"/meshcni-node-") && name != "ConfigMap "+namespace+"/"+settings
	})
	return all
}

// withoutFormerMounts removes mounts whose path only an upgrade that failed had: a mount is known by its path. They are of a volume that is
// there anyway, with what that has now, and no argument names them.
func withoutFormerMounts(t testing.TB, fresh, now map[string]any) {
	t.Helper()
	agent := func(ds map[string]any) map[string]any {
		containers, ok, err := unstructured.NestedFieldNoCopy(ds, "spec", "template", "spec", "containers")
		require.True(t, ok && err == nil)
		require.Len(t, containers, 1)
		return containers.([]any)[0].(map[string]any)
	}
	paths, volumes := map[any]bool{}, map[any]bool{}
	for _, mount := range agent(fresh)["volumeMounts"].([]any) {
		paths[mount.(map[string]any)["mountPath"]], volumes[mount.(map[string]any)["name"]] = true, true
	}
	agent(now)["volumeMounts"] = slices.DeleteFunc(agent(now)["volumeMounts"].([]any), func(mount any) bool {
		assert.True(t, volumes[mount.(map[string]any)["name"]], "%v", mount)
		return !paths[mount.(map[string]any)["mountPath"]]
	})
}

// TestCorrectedUpgrade: after upgrades that failed, the one with the old values leaves on a real API server what a fresh installation
// has, and so does a rollback. Helm 3 merges with the release that was last deployed, so it knows nothing of what the failed ones had.
// Nobody makes pods here, so an upgrade that is waited for fails.
func TestCorrectedUpgrade(t *testing.T) {
	admin := server(t)
	const at = "mesh-upgrade"
	on := release(t, at, nil)
	done := func(verb string, v values, flags ...string) {
		t.Helper()
		_, err := on(verb, v, flags...)
		require.NoError(t, err)
	}
	bad := map[string]values{
		"ambient, no image": {"ambient": values{"enabled": true}, "image": values{"tag": "missing"}},
		"wrong file":        {"cni": values{"confName": "99-missing.conflist"}},
		"wrong directories": {"cni": values{"binDirs": []string{"/opt/cni/bin", "/opt/missing"}}},
		"template":          {"pluginConfig": `{"type": "meshcni", "ambient": {"probe_ipv4": "none"}}`}, // which the agent sees, and the chart does not
		"everything": {
			"repair": values{"mode": "delete", "verifyInterval": "5m", "forceDelete": true}, "dialect": "linkerd", "excludeNamespaceSelector": "a=b", "writeStatus": true,
			"hostNetwork": false, "seLinuxOptions": values{"type": "spc_t"}, "appArmorProfile": values{"type": "Localhost", "localhostProfile": "x"},
			"seccompProfile": values{"type": "Localhost", "localhostProfile": "y"}, "uninstallOnExit": true, "metrics": values{"scrapeAnnotations": true},
			"affinity":       values{"nodeAffinity": values{"requiredDuringSchedulingIgnoredDuringExecution": values{"nodeSelectorTerms": []values{{"matchExpressions": []values{{"key": "x", "operator": "Exists"}}}}}}},
			"updateStrategy": values{"type": "OnDelete"}, "tolerations": []values{}, "imagePullSecrets": []values{{"name": "pull"}},
		},
	}
	fails := func(name string) {
		t.Helper()
		_, err := on("upgrade", bad[name], "--wait", "--timeout=1s")
		require.Error(t, err, name)
		require.ErrorContains(t, err, "context deadline exceeded", "%s: for no other reason", name)
	}
	defer func() {
		_, err := on("uninstall", nil, "--no-hooks")
		assert.NoError(t, err)
	}()
	good := values{"excludeNamespaces": []string{"kube-system", "a"}}
	done("install", good)
	fresh := live(t, admin, at)
	same := func(after string) {
		t.Helper()
		now := live(t, admin, at)
		require.Equal(t, slices.Sorted(maps.Keys(fresh)), slices.Sorted(maps.Keys(now)), after)
		for name, o := range fresh {
			if strings.HasPrefix(name, "DaemonSet") {
				withoutFormerMounts(t, o, now[name])
			}
			assert.Equal(t, o, now[name], "%s: %s", after, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		fails(name)
		done("upgrade", good)
		same(name + ", corrected")
	}
	fails("everything")
	fails("ambient, no image")
	done("upgrade", good)
	same("two that failed, corrected")
	fails("everything")
	done("rollback", nil)
	same("rolled back")
	done("upgrade", ambientOn)
	done("upgrade", good)
	same("ambient on and off")
}

// TestCanary: a second release beside the first, on other nodes, with names of its own.
func TestCanary(t *testing.T) {
	server(t)
	first, second := release(t, "mesh-first", nil), release(t, "mesh-canary", nil)
	_, err := first("install", values{"affinity": values{"nodeAffinity": values{"requiredDuringSchedulingIgnoredDuringExecution": values{"nodeSelectorTerms": []values{
		{"matchExpressions": []values{{"key": "mesh-canary", "operator": "DoesNotExist"}}}}}}}})
	require.NoError(t, err)
	canary := values{"fullnameOverride": "meshcni-node-canary", "nodeSelector": values{"mesh-canary": "yes"}, "dialect": []string{"istio", "linkerd"}}
	_, err = second("install", canary)
	require.NoError(t, err)
	_, err = second("upgrade", canary.with(ambientOn).with(values{"repair": values{"mode": "label"}}))
	require.NoError(t, err)
	_, err = second("uninstall", nil, "--no-hooks")
	require.NoError(t, err)
	_, err = first("uninstall", nil, "--no-hooks")
	require.NoError(t, err)
}

// TestCanaryHasItsOwn: no object of a second release, of a hook neither, has the name of one of the first, even in the same namespace; and what
// uninstalls nodes uninstalls its own.
func TestCanaryHasItsOwn(t *testing.T) {
	t.Parallel()
	full := ambientOn.with(options["alerts, dashboard"]).with(values{"taint": values{"enabled": true}, "openshift": values{"scc": "privileged"}})
	names := func(v values) map[string]bool {
		all := map[string]bool{}
		for _, o := range mustRender(t, v) {
			all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = true
		}
		return all
	}
	canary := full.with(values{"fullnameOverride": "meshcni-node-canary", "nodeSelector": values{"mesh-canary": "yes"}})
	others := names(full)
	for name := range names(canary) {
		assert.False(t, others[name], "both have %s", name)
	}
	for _, o := range mustRender(t, canary).of("DaemonSet") {
		selector, _, err := unstructured.NestedStringMap(o.Object, "spec", "template", "spec", "nodeSelector")
		require.NoError(t, err)
		assert.Equal(t, map[string]string{"kubernetes.io/os": "linux", "mesh-canary": "yes"}, selector, o.GetName())
	}
}
