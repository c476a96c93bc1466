package redirectcmd_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGolden keeps what people read. After a change that is meant, run
// go test ./cmd/redirectcmd -update and review the difference.
func TestGolden(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		code int
	}{
		"web.explain.txt":         {args: []string{"explain", "-f", "web.yaml"}},
		"web.explain.json":        {args: []string{"explain", "-f", "web.yaml", "-o", "json"}},
		"leaky.explain.txt":       {args: []string{"explain", "-f", "leaky.yaml"}},
		"leaky.closed.txt":        {args: []string{"explain", "-f", "leaky.yaml", "--uncaptured-family", "drop"}},
		"bad.explain.txt":         {args: []string{"explain", "-f", "bad.yaml"}, code: 1},
		"bad.explain.json":        {args: []string{"explain", "-f", "bad.yaml", "-o", "json"}, code: 1},
		"excluded.explain.json":   {args: []string{"explain", "-f", "web.yaml", "-o", "json", "--exclude-namespaces", "shop"}},
		"tproxy.rules.txt":        {args: []string{"rules", "-f", "tproxy.yaml"}},
		"tproxy.rules6.txt":       {args: []string{"rules", "-f", "tproxy.yaml", "--family", "6"}},
		"web.rules.nft":           {args: []string{"rules", "-f", "web.yaml", "--format", "nft"}},
		"web.rules.json":          {args: []string{"rules", "-f", "web.yaml", "--format", "json"}},
		"web.rules.mmd":           {args: []string{"rules", "-f", "web.yaml", "--format", "mermaid"}},
		"tproxy.rules.mermaid.md": {args: []string{"rules", "-f", "tproxy.yaml", "--format", "mermaid"}},
		"web.connection.txt":      {args: []string{"trace", "--connection", "-f", "web.yaml", "--direction", "in", "--src", "10.0.0.9", "--dst", "10.244.1.5", "--dport", "8080"}},
		"web.trace.txt":           {args: []string{"trace", "-f", "web.yaml", "--dst", "10.96.0.10", "--dport", "53", "--proto", "udp", "--uid", "2000"}},
		"flags.rules.txt":         {args: []string{"apply", "--dry-run", "--ip", "10.244.1.5", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := call{}.run(t, tt.args...)
			require.Equal(t, tt.code, got.code, got.errOut)
			golden := filepath.Join("testdata", "golden", name)
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))     //nolint:gosec // a source file
				require.NoError(t, os.WriteFile(golden, []byte(got.out), 0o644)) //nolint:gosec // a source file
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), got.out)
			if strings.HasSuffix(name, ".json") {
				assert.True(t, json.Valid([]byte(got.out)))
			}
		})
	}
}

// TestNothingRaw: what a pod says cannot command the terminal of who reads it.
func TestNothingRaw(t *testing.T) {
	t.Parallel()
	evil := "\\e[2J\\x9b31m\\u202e\\U0001F4A3\\x07\\r"
	pod := `kind: Pod
metadata:
  name: web
  namespace: shop
  annotations:
    sidecar.istio.io/status: "x"
    traffic.sidecar.istio.io/excludeInterfaces: "` + evil + `"
    traffic.sidecar.istio.io/kubevirtInterfaces: "` + evil + `"
  labels: {sidecar.istio.io/inject: "` + evil + `"}
spec:
  containers:
    - {name: "app` + evil + `", securityContext: {runAsUser: 1337}}
    - {name: istio-proxy, env: [{name: INVALID_DROP, value: "` + evil + `"}]}
`
	for _, args := range [][]string{
		{"explain", "-f", "-"}, {"explain", "-f", "-", "-o", "json"}, {"rules", "-f", "-"},
		{"trace", "-f", "-", "--dst", "10.0.0.1"}, {"apply", "-f", "-", "--dry-run"},
		{"rules", "-b", "\x1b[2J\u009b"}, {"explain", "-f", "\x1b]0;x\x07"},
	} {
		got := call{stdin: pod}.run(t, args...)
		for _, text := range []string{got.out, got.errOut} {
			for _, r := range text {
				assert.False(t, r != '\n' && r != '\t' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x202e), "%v: %q in %q", args, r, text)
			}
		}
	}
}
