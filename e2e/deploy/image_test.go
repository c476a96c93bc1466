package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

var (
	releasedDigest = "sha256:" + strings.Repeat("0123456789abcdef", 4)
	otherDigest    = "sha256:" + strings.Repeat("fedcba9876543210", 4)
)

// TestImage: where the image comes from is always said, by the user or by the release: never by the container runtime, whose
// default registry belongs to nobody in particular.
func TestImage(t *testing.T) {
	t.Parallel()
	const unset, noHost = "image.registry is not set", "is no registry's host"
	released := filepath.Join(t.TempDir(), "meshcni")
	require.NoError(t, os.CopyFS(released, os.DirFS(chart)))
	text, err := os.ReadFile(filepath.Join(released, "Chart.yaml"))
	require.NoError(t, err)
	var c struct{ AppVersion string }
	require.NoError(t, yaml.Unmarshal(text, &c))
	text = append(text, "\nannotations:\n  meshcni.io/image-registry: registry.example.com/team\n  meshcni.io/image-digest: "+releasedDigest+"\n"...)
	require.NoError(t, os.WriteFile(filepath.Join(released, "Chart.yaml"), text, 0o600))

	for name, tt := range map[string]struct {
		image values
		// What is rendered of the chart in the sources, and of a released one; or what the error says.
		source, released string
	}{
		"nothing":                    {values{}, unset, "registry.example.com/team/meshcni/meshcni@" + releasedDigest},
		"a tag":                      {values{"tag": "v9"}, unset, "registry.example.com/team/meshcni/meshcni:v9"},
		"a digest":                   {values{"digest": otherDigest}, unset, "registry.example.com/team/meshcni/meshcni@" + otherDigest},
		"a repository":               {values{"repository": "a.b"}, unset, "registry.example.com/team/a.b@" + releasedDigest},
		"a registry":                 {values{"registry": "mirror.example:5000/x"}, "mirror.example:5000/x/meshcni/meshcni:" + c.AppVersion, "mirror.example:5000/x/meshcni/meshcni@" + releasedDigest},
		"an address":                 {values{"registry": "10.0.0.1"}, "10.0.0.1/meshcni/meshcni:" + c.AppVersion, "10.0.0.1/meshcni/meshcni@" + releasedDigest},
		"a name and a port":          {values{"registry": "registry:5000"}, "registry:5000/meshcni/meshcni:" + c.AppVersion, "registry:5000/meshcni/meshcni@" + releasedDigest},
		"a registry on the node":     {values{"registry": "localhost:5000"}, "localhost:5000/meshcni/meshcni:" + c.AppVersion, "localhost:5000/meshcni/meshcni@" + releasedDigest},
		"imported":                   {values{"registry": "localhost"}, "localhost/meshcni/meshcni:" + c.AppVersion, "localhost/meshcni/meshcni:" + c.AppVersion},
		"imported by a digest":       {values{"registry": "localhost", "digest": otherDigest}, "localhost/meshcni/meshcni@" + otherDigest, "localhost/meshcni/meshcni@" + otherDigest},
		"all in the repository":      {values{"repository": "mirror.example:5000/x/mesh"}, "mirror.example:5000/x/mesh:" + c.AppVersion, "mirror.example:5000/x/mesh@" + releasedDigest},
		"no host":                    {values{"registry": "team"}, noHost, noHost},
		"no host but in the path":    {values{"registry": "team/registry.example"}, noHost, noHost},
		"a host that begins like it": {values{"registry": "localhosts"}, noHost, noHost},
	} {
		for at, want := range map[string]string{chart: tt.source, released: tt.released} {
			t.Run(name+" in "+at[:4], func(t *testing.T) {
				t.Parallel()
				// Without the place that other tests' values have.
				given := values{"image": values{"registry": ""}.with(tt.image)}
				out, err := helm(t, "template", "meshcni", at, "--namespace", namespace, "--kube-version", kubeVersion, "--values", given.write(t))
				if want == unset || want == noHost {
					assert.ErrorContains(t, err, want)
					return
				}
				require.NoError(t, err)
				all := parse(t, out)[""]
				assert.Equal(t, want, one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template.Spec.Containers[0].Image)
				for _, c := range one[corev1.Pod](t, all, "Pod", "meshcni-test").Spec.Containers {
					assert.Equal(t, want, c.Image)
				}
			})
		}
	}
}
