package ownnodeproxy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

// TestPrograms builds all programs of the mesh, which have its names and none of meshcni's, in what they say and in what they look for.
func TestPrograms(t *testing.T) {
	require.NoError(t, gateway.Identity.Validate())
	mains, err := filepath.Glob("cmd/*/main.go")
	require.NoError(t, err)
	require.Len(t, mains, 6)
	for _, main := range mains {
		text, err := os.ReadFile(main) // an input of the test's cached result
		require.NoError(t, err)
		assert.Less(t, strings.Count(string(text), "\n"), 20, main)
	}
	bin := t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin, "./cmd/...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(command string) string {
		args := strings.Fields(command)
		cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...) //nolint:gosec // the test's own
		cmd.Env = []string{}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	for command, says := range map[string][]string{
		"gateway-cni --version":      {"gateway-cni v1.0.0\n"},
		"gateway-node --version":     {"gateway-node v1.0.0\n"},
		"gateway-redirect --version": {"gateway-redirect v1.0.0\n"},
		"gateway-repair --version":   {"gateway-repair v1.0.0\n"},
		"gateway-taint --version":    {"gateway-taint v1.0.0\n"},
		"kubectl-gateway --version":  {"kubectl-gateway v1.0.0\n"},
		"gateway-node run --help": {
			"GATEWAY_RUN_DIR", "/var/run/gateway-cni", "/opt/gateway/bin", "(default gateway-system)", "(default gateway-node)", "(default gateway-plugin)",
		},
		"gateway-repair --help":    {"GATEWAY_REPAIR", "/var/run/gateway-cni", "gateway.example/not-redirected=true", "(default gateway-cni)"},
		"gateway-repair":           {"GATEWAY_NODE_NAME"},
		"gateway-taint run --help": {"GATEWAY_TAINT_KEY", "gateway.example/agent-not-ready", "app.kubernetes.io/name=gateway,app.kubernetes.io/component=node", "(default gateway-taint)"},
		"kubectl-gateway --help": {
			"app.kubernetes.io/name=gateway,app.kubernetes.io/component=node", "ClusterRoleBindings gateway-plugin and gateway-plugin-…, or else gateway-system",
		},
		"kubectl-gateway explain --code node-not-ready": {gateway.Identity.Page("troubleshooting.md#the-node-is-not-ready")},
		"gateway-redirect explain node-not-ready":       {gateway.Identity.Page("troubleshooting.md#the-node-is-not-ready")},
	} {
		said := run(command)
		for _, want := range says {
			assert.Contains(t, said, want, command)
		}
		assert.NotContains(t, strings.ReplaceAll(said, gateway.Identity.Page(""), ""), "meshcni", command)
	}
}
