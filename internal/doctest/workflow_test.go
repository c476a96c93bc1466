package doctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestExampleWorkflow runs the check of the workflow that people copy: it passes the example's manifests, and shows what is broken in place.
func TestExampleWorkflow(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct{ Name, Run string } `json:"steps"`
		} `json:"jobs"`
	}
	text, err := os.ReadFile(filepath.Join(root(t), "examples", "ci", "check-manifests.yml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &workflow))
	script := ""
	for _, s := range workflow.Jobs["check-manifests"].Steps {
		if s.Name == "check" {
			script = s.Run
		}
	}
	require.NotEmpty(t, script)
	run := func(dir string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+programs(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(filepath.Join(root(t), "examples", "ci"))
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "2 pods and workloads: 2 captured; passed over: 1 Service\n", out)

	manifest, err := os.ReadFile(filepath.Join(root(t), "examples", "ci", "manifests", "shop.yaml"))
	require.NoError(t, err)
	broken := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(broken, "manifests"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(broken, "manifests", "shop.yaml"), []byte(strings.Replace(string(manifest), `"5432"`, `"5432,x"`, 1)), 0o600))
	out, err = run(broken)
	assert.ErrorContains(t, err, "exit status 1")
	assert.Contains(t, out, "::error file=manifests/shop.yaml,line=21,title=Deployment shop/cart%3A refused::annotation traffic.sidecar.istio.io/excludeOutboundPorts=\"5432,x\"")
}
