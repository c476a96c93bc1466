package agreementtest_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/plugin"
)

// TestDialectsThatCannotWork: a program that was built with such dialects says so, at its start, and does not panic.
func TestDialectsThatCannotWork(t *testing.T) {
	named := func(names ...string) []dialect.Dialect {
		list := make([]dialect.Dialect, len(names))
		for i, name := range names {
			list[i] = linkerd.New()
			list[i].Name = name
		}
		return list
	}
	run := filepath.Join(t.TempDir(), "run")
	for want, list := range map[string][]dialect.Dialect{
		"no mesh is configured":            {},
		`Name "" is not`:                   named(""),
		`Name "Mine" is not`:               named("Mine"),
		`Name "a/b" is not`:                named("a/b", "c"),
		`Name "a b" is not`:                named("a", "a b"),
		"two dialects have this name":      named("mine", "mine"),
		`Name "a,b" is not 1 to 63 of a t`: named("a,b"),
	} {
		for name, main := range map[string]func(stdout, stderr *bytes.Buffer) int{
			"agent": func(_, stderr *bytes.Buffer) int {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return nodecmd.Program{Dialects: list, Stderr: stderr}.Main(ctx, []string{"run", "--run-dir", run, "--cni-bin-dir", run,
					"--cni-conf-dir", run, "--metrics-address", "", "--health-address", ""})
			},
			"repair": func(_, stderr *bytes.Buffer) int {
				return repaircmd.Program{Dialects: list, Stderr: stderr}.Main(t.Context(), []string{"--node-name", "n", "--repair", "label"})
			},
			"redirect": func(_, stderr *bytes.Buffer) int {
				return redirectcmd.Program{Dialects: list, Stderr: stderr}.Main(t.Context(), []string{"explain", "--config", "none", "-f", "-"})
			},
			"kubectl": func(_, stderr *bytes.Buffer) int {
				return kubectlcmd.Program{Dialects: list, Stderr: stderr}.Main(t.Context(), []string{"status"})
			},
			"plugin": func(stdout, stderr *bytes.Buffer) int {
				env := map[string]string{"CNI_COMMAND": "STATUS"}
				p := plugin.Plugin{Dialects: list}
				code := p.Run(t.Context(), plugin.IO{
					Getenv: func(key string) string { return env[key] }, Stderr: stderr, Stdout: stdout,
					Stdin: bytes.NewBufferString(`{"cniVersion": "1.1.0", "name": "n", "type": "meshcni", "run_dir": "` + run + `"}`),
				})
				assert.Contains(t, stdout.String(), `"code": 7`)
				stderr.Write(bytes.ReplaceAll(stdout.Bytes(), []byte(`\"`), []byte(`"`)))
				return code
			},
		} {
			var stdout, stderr bytes.Buffer
			code := main(&stdout, &stderr)
			text := string(bytes.ReplaceAll(stderr.Bytes(), []byte(`\"`), []byte(`"`))) // of a log
			assert.Contains(t, text, want, "%s: exit code %d", name, code)
		}
		_, err := nodecmd.Program{Dialects: list}.Parse([]string{"run"})
		if len(list) == 0 {
			require.ErrorContains(t, err, want)
		}
	}
}
