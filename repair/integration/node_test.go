package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// TestTheNodeAgentRepairs runs meshcni-node as its DaemonSet does: it installs the
// plugin, repairs with the same readiness and metrics, and says when it may not.
func TestTheNodeAgentRepairs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	for _, d := range []string{"src", "bin", "net.d", "run", "sa", "cache"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755)) //nolint:gosec // one is a program
	}
	ca, err := os.ReadFile(w.s.CAFile())
	require.NoError(t, err)
	_, token := account(t, w.admin, "repair-label")
	write("sa/ca.crt", string(ca))
	write("sa/token", token)
	write("src/meshcni", "#!/bin/sh\nexit 0\n")
	write("bin/ptp", "#!/bin/true\n")
	write("net.d/10-net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"}]}`)
	port, err := proctest.FreePort()
	require.NoError(t, err)
	address := "127.0.0.1:" + strconv.Itoa(port)
	in := func(flag, d string) string { return "--" + flag + "=" + filepath.Join(dir, d) }
	p := startProcess(t, address, buildProgram(t, "meshcni-node"), "run",
		in("bin-source-dir", "src"), in("cni-bin-dir", "bin"), in("cni-conf-dir", "net.d"), in("run-dir", "run"),
		in("service-account-dir", "sa"), in("cni-cache-dir", "cache"),
		"--kubernetes-service-host=127.0.0.1", fmt.Sprintf("--kubernetes-service-port=%d", w.s.Address().Port()),
		"--repair=label", "--node-name="+w.node, "--metrics-address="+address, "--health-address="+address)

	eventually(t, "ready", func() bool { return p.get(t, "/readyz") == "ok\n" })
	text, err := os.ReadFile(filepath.Join(dir, "net.d/10-net.conflist"))
	require.NoError(t, err)
	assert.Contains(t, string(text), `"meshcni"`)
	broken := w.make(t, "crash-loop", "broken")
	eventually(t, "labelled", func() bool {
		return w.Pod(t, w.ns, broken.Name).Labels[meshcni.Identity{}.Key("not-redirected")] == "true"
	})
	const done = `meshcni_repair_outcomes_total{action="label",outcome="labelled",reason="check-failed"}`
	eventually(t, "counted", func() bool { return p.metric(t, done) == 1 })
	assert.InDelta(t, 1, p.metric(t, "meshcni_ready"), 0)

	// Without the right to list pods a restarted agent is not ready, and says why.
	_, powerless := account(t, w.admin, "repair-none")
	write("sa/token", powerless)
	port, err = proctest.FreePort()
	require.NoError(t, err)
	address = "127.0.0.1:" + strconv.Itoa(port)
	q := startProcess(t, address, p.cmd.Path, append(append([]string{}, p.cmd.Args[1:len(p.cmd.Args)-2]...),
		"--metrics-address="+address, "--health-address="+address)...)
	eventually(t, "not ready", func() bool {
		resp, err := http.Get(q.url + "/readyz") //nolint:noctx // a test's
		if err != nil {
			return false // it does not listen yet
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		return err == nil && resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(text), "repair:")
	})
}
