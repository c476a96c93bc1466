package deploy_test

import (
	"bytes"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

var update = flag.Bool("update", false, "write deploy/manifests and the chart's copies anew")

// header says what the file is.
const header = `# meshcni for PLATFORM, as plain manifests: kubectl apply -f FILE
# Made from deploy/helm/meshcni by "make manifests"; changes belong there. The image is MESHIMAGE.
# registry.invalid exists nowhere: put in your registry, or localhost for an image that was imported on the nodes under that name.
`

// namespaceManifest is what Helm's users make themselves.
const namespaceManifest = `apiVersion: v1
kind: Namespace
metadata:
  name: meshcni-system
  labels:
    app.kubernetes.io/name: meshcni
    # The agent's pods have host paths, and it is no mesh's.
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/audit: privileged
    pod-security.kubernetes.io/warn: privileged
    istio-injection: disabled
    linkerd.io/inject: disabled
    kuma.io/sidecar-injection: disabled
`

func manifestNamespace(t testing.TB) objects {
	t.Helper()
	o := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(namespaceManifest), &o))
	return objects{{Object: o}}
}

// helms are what only Helm has a use for.
var helms = regexp.MustCompile(`(?m)^(# Source: .*|\s+(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*)\n`)

// manifest renders a platform's.
func manifest(t testing.TB, profile string) []byte {
	t.Helper()
	out, err := helm(t, "template", "meshcni", chart, "--namespace", namespace, "--kube-version", kubeVersion, "--no-hooks",
		"--values", values{"profile": profile, "tests": values{"enabled": false}}.write(t))
	require.NoError(t, err)
	platform := "any platform with the default directories"
	if profile != "" {
		platform = profile
	}
	image := regexp.MustCompile(`image: "(.*)"`).FindStringSubmatch(out)
	require.NotNil(t, image)
	head := strings.NewReplacer("PLATFORM", platform, "FILE", manifestName(profile), "MESHIMAGE", image[1]).Replace(header)
	return []byte(head + "---\n" + namespaceManifest + helms.ReplaceAllString(out, ""))
}

func manifestName(profile string) string {
	if profile == "" {
		return "install.yaml"
	}
	return "install-" + profile + ".yaml"
}

// TestManifests: the plain manifests are what the chart renders.
func TestManifests(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, profile := range profiles(t) {
		name := manifestName(profile)
		want[name] = true
		path := filepath.Join("manifests", name)
		text := manifest(t, profile)
		if *update {
			require.NoError(t, os.MkdirAll("manifests", 0o755))
			require.NoError(t, os.WriteFile(path, text, 0o644)) //nolint:gosec // for everybody to read
		}
		have, err := os.ReadFile(path)
		require.NoError(t, err, "make manifests")
		assert.True(t, bytes.Equal(text, have), "%s is not what the chart renders: make manifests", path)
	}
	files, err := os.ReadDir("manifests")
	require.NoError(t, err)
	for _, f := range files {
		assert.True(t, want[f.Name()], "manifests/%s is nobody's", f.Name())
	}
}

// TestManifestsCopies: what the chart has of deploy/monitoring is what is there, since a
// chart cannot reach out of itself.
func TestManifestsCopies(t *testing.T) {
	t.Parallel()
	for path, text := range readAll(t, filepath.Join(chart, "files")) {
		original, err := os.ReadFile(filepath.Join("monitoring", path))
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile(filepath.Join(chart, "files", path), original, 0o644)) //nolint:gosec // for everybody to read
			continue
		}
		assert.True(t, text == string(original), "%s/files/%s is no copy of monitoring/%s: make manifests", chart, path, path)
	}
}

// TestPlainOnesAreAccepted: by a real server, as they are.
func TestPlainOnesAreAccepted(t *testing.T) {
	t.Parallel()
	admin := server(t)
	for name, text := range readAll(t, "manifests") {
		for _, doc := range strings.Split(text, "\n---\n")[1:] {
			o := unstructured.Unstructured{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &o.Object))
			json, err := o.MarshalJSON()
			require.NoError(t, err)
			assert.NoError(t, dryRun(admin, string(json)), "%s: %s", name, o.GetKind())
		}
	}
}

// TestPlainOnesWithTheAgentsToken: where the API server binds no tokens to nodes, the plugin has the agent's. With the plain manifests,
// which know no version, it reads its pod all the same, and writes nothing.
func TestPlainOnesWithTheAgentsToken(t *testing.T) {
	t.Parallel()
	s := kubetest.Own(t, kubetest.Options{})
	g := &guarded{Admin: s.Admin(t), server: s, namespace: namespace, pods: "shop"}
	for _, name := range []string{g.namespace, g.pods} {
		g.Do(t, http.MethodPost, collection("v1", "Namespace", ""), values{"metadata": values{"name": name}}, nil)
	}
	for _, doc := range strings.Split(readAll(t, "manifests")["install.yaml"], "\n---\n")[1:] {
		o := unstructured.Unstructured{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &o.Object))
		if o.GetKind() == "ServiceAccount" || strings.HasPrefix(o.GetAPIVersion(), "rbac.") {
			g.Do(t, http.MethodPost, collection(o.GetAPIVersion(), o.GetKind(), o.GetNamespace()), o.Object, nil)
		}
	}
	g.ServiceAccount(t, g.pods, "default")
	g.pod(t, g.pods, "web-1", "default", "node-1")
	for _, account := range []string{"meshcni-node", "meshcni-plugin"} {
		token := g.token(t, account, nil)
		code, answer := g.send(t, request{"", token, http.MethodGet, kubetest.PodPath(g.pods, "web-1"), nil, ""}, "")
		assert.Equal(t, http.StatusOK, code, "%s: %s", account, answer)
		code, answer = g.send(t, g.status("", token, "web-1", mark("labels", "a", "b"), ""), "")
		assert.Equal(t, http.StatusForbidden, code, "%s: %s", account, answer)
	}
}
