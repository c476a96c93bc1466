package runtime

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// collections are where the API server has the manifest's kinds.
var collections = map[string]string{
	"Namespace":          "/api/v1/namespaces",
	"ServiceAccount":     "/api/v1/namespaces/" + agentNamespace + "/serviceaccounts",
	"ConfigMap":          "/api/v1/namespaces/" + agentNamespace + "/configmaps",
	"ClusterRole":        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"Role":               "/apis/rbac.authorization.k8s.io/v1/namespaces/" + agentNamespace + "/roles",
	"RoleBinding":        "/apis/rbac.authorization.k8s.io/v1/namespaces/" + agentNamespace + "/rolebindings",
	"DaemonSet":          daemonSets,

	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}

// apply makes the objects of the published manifest, with the image of this
// checkout; those that are there already stay.
func (n *node) apply(t testing.TB) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(proctest.Root(), "deploy", "manifests", "install.yaml"))
	require.NoError(t, err)
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var object map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(doc), &object))
		kind, _ := object["kind"].(string)
		if kind == "" {
			continue // comments only
		}
		require.Contains(t, collections, kind, "an object of the manifest")
		collection := collections[kind]
		if meta, _ := object["metadata"].(map[string]any); meta["namespace"] == "default" { // the role for events about nodes
			collection = strings.Replace(collection, "/namespaces/"+agentNamespace+"/", "/namespaces/default/", 1)
		}
		if err := n.admin.Try(http.MethodPost, collection+"?fieldValidation=Strict", withOurImage(t, object), nil); err != nil {
			require.ErrorContains(t, err, "409")
		}
	}
}

// withOurImage replaces what the manifest has for image.
func withOurImage(t testing.TB, object map[string]any) map[string]any {
	t.Helper()
	text, err := json.Marshal(object)
	require.NoError(t, err)
	var out map[string]any
	before, after, found := strings.Cut(string(text), `"registry.invalid/meshcni/meshcni:`)
	if found {
		_, after, _ = strings.Cut(after, `"`)
		text = []byte(before + `"` + image.Ours + `"` + after)
	}
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// volumes makes what a kubelet makes for a pod's volumes that are no paths of the
// host, and returns where they are; the paths it makes if they are to be.
func (n *node) volumes(t testing.TB, pod *corev1.Pod) map[string]string {
	t.Helper()
	paths := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		files := map[string]string{}
		switch {
		case v.HostPath != nil:
			if v.HostPath.Type != nil && *v.HostPath.Type == corev1.HostPathDirectoryOrCreate {
				require.NoError(t, os.MkdirAll(v.HostPath.Path, 0o755))
			}
			continue
		case v.EmptyDir != nil:
		case v.Name == "config":
			sources := v.Projected.Sources
			var m corev1.ConfigMap
			n.admin.Do(t, http.MethodGet, collections["ConfigMap"]+"/"+sources[len(sources)-1].ConfigMap.Name, nil, &m)
			files = m.Data
		case v.Projected != nil: // the service account's
			ca, err := os.ReadFile(n.server.CAFile())
			require.NoError(t, err)
			files["ca.crt"], files["namespace"] = string(ca), pod.Namespace
			files["token"] = n.admin.TokenOfNode(t, pod.Namespace, pod.Spec.ServiceAccountName, "node-1")
		default:
			require.Fail(t, "a volume of a kind that is not known here", "%s", v.Name)
		}
		dir := filepath.Join(machine.Dir, "volumes", string(pod.UID), v.Name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		paths[v.Name] = dir
	}
	// A kubelet tells each container where the API server is.
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Env = append(c.Env, corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: serviceIP}, corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "443"})
	}
	return paths
}

// podMeta is a pod's name, in a namespace.
func podMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}, Labels: map[string]string{"app": name}}
}
