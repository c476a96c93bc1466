package deploy_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// TestMigratedValues: the chart takes the values that "kubectl meshcni migrate" makes of other plugins' settings.
func TestMigratedValues(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../migrate/internal/migration/testdata/*.values.yaml")
	require.NoError(t, err)
	require.Len(t, files, 5)
	all := make([]values, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, yaml.UnmarshalStrict(text, &all[i]))
		all[i] = all[i].located()
	}
	for i, rendered := range renderAll(t, all) {
		ds := one[appsv1.DaemonSet](t, rendered, "DaemonSet", "meshcni-node")
		assert.Contains(t, hostPaths(t, ds.Spec.Template.Spec), all[i]["cni"].(map[string]any)["confDir"], files[i])
	}
}
