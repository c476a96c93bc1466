package vuln_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const script = "../../../.ci/vuln"

var tool = netnstest.Need{Name: "govulncheck (.ci/tool govulncheck)", Check: func() error {
	return exec.Command("../../../.ci/tool", "govulncheck").Run()
}}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// database has one vulnerability, of a function of the standard library, in
// every version of Go.
func database(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"index/db.json":      `{"modified":"2026-01-01T00:00:00Z"}`,
		"index/modules.json": `[{"path":"stdlib","vulns":[{"id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z"}]}]`,
		"ID/GO-2026-0001.json": `{"schema_version":"1.3.1","id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z","published":"2026-01-01T00:00:00Z",
			"summary":"Too many repetitions","details":"Repeat repeats.","database_specific":{"url":"https://vuln.invalid/GO-2026-0001"},"affected":[{"package":{"name":"stdlib","ecosystem":"Go"},
			"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],
			"ecosystem_specific":{"imports":[{"path":"strings","symbols":["Repeat"]}]}}]}`,
	})
	return "file://" + dir
}

func module(t *testing.T, call string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod":  "module example.com/m\n\ngo 1.24\n",
		"main.go": "package main\n\nimport \"strings\"\n\nfunc main() { println(strings." + call + ") }\n",
	})
	return dir
}

func run(t *testing.T, module, database string) (said string, code int) {
	t.Helper()
	cmd := exec.Command(script, module)
	cmd.Env = append(os.Environ(), "GOVULNDB="+database, "VULN_TIMEOUT=2", "HTTPS_PROXY=", "HTTP_PROXY=", "https_proxy=", "http_proxy=")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestScript(t *testing.T) {
	netnstest.Require(t, tool)
	text, err := os.ReadFile(script) // also an input of the cached result
	require.NoError(t, err)
	require.NotEmpty(t, text)
	tests := map[string]struct {
		call string
		code int
		want string
	}{
		"the vulnerable function is called": {`Repeat("a", 2)`, 3, "GO-2026-0001"},
		"another one is":                    {`ToUpper("a")`, 0, "No vulnerabilities found"},
		"it does not build":                 {`Nothing("a")`, 1, "undefined: strings.Nothing"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, code := run(t, module(t, c.call), database(t))
			assert.Equal(t, c.code, code, "%s", said)
			assert.Contains(t, said, c.want)
		})
	}
}

// TestOutOfReach: no answer, a refusal, and a server that is no database.
func TestOutOfReach(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	for name, address := range map[string]string{
		"silent": "http://" + silent.Addr().String(), "closed": "http://" + closed.Addr().String(), "other": other.URL,
		"no such name": "https://vuln.invalid",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, code := run(t, t.TempDir(), address)
			assert.Zero(t, code)
			assert.Regexp(t, `^vuln: the vulnerability database \S+ cannot be reached \(.+\): nothing was checked\n$`, said)
		})
	}
}
