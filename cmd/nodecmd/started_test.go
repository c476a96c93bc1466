//go:build linux

package nodecmd

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/internal/serve"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// startedAgent is an agent of a node, in a pod of its own.
type startedAgent struct {
	socket string
	log    output
	stop   func() int
}

func startAgent(t *testing.T, env map[string]string, health, pod string) *startedAgent {
	t.Helper()
	require.NoError(t, os.MkdirAll(pod, 0o755))
	a := &startedAgent{socket: filepath.Join(pod, "s")}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		done <- Program{Env: lookup(env), Stderr: &a.log}.Main(ctx, []string{"run", "--metrics-address", "", "--health-address", health, "--start-socket", a.socket})
	}()
	ended, code := false, 0
	a.stop = func() int {
		cancel()
		if !ended {
			ended, code = true, <-done
		}
		return code
	}
	t.Cleanup(func() {
		a.stop()
		if t.Failed() {
			t.Log(a.log.String())
		}
	})
	return a
}

// TestStarted: the agents of an update share an address, and the startup probe asks the one that it is about. A new one that could not do
// its work has not started, says why, and leaves the address and the node to the one before it; one that can takes both over.
func TestStarted(t *testing.T) {
	dir, env := node(t)
	port, err := proctest.FreePort()
	require.NoError(t, err)
	health := fmt.Sprintf("127.0.0.1:%d", port)
	readyz := func() int {
		resp, err := http.Get("http://" + health + "/readyz") //nolint:noctx // a test's own
		if err != nil {
			return 0
		}
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	sockets := t.TempDir()
	started := func(a *startedAgent, more ...string) (int, string) {
		code, _, stderr := run(t, env, append([]string{"started", "--start-socket", a.socket}, more...)...)
		return code, stderr
	}

	old := startAgent(t, env, health, sockets+"/a")
	code, stderr := started(old)
	require.Zero(t, code, stderr)
	assert.Equal(t, http.StatusOK, readyz())

	wrong := maps.Clone(env)
	wrong["MESHCNI_CNI_CONF_DIR"] = t.TempDir()
	unable := startAgent(t, wrong, health, sockets+"/b")
	require.Eventually(t, func() bool {
		code, stderr = started(unable, "--patience=0s")
		return code == 1 && strings.Contains(stderr, wrong["MESHCNI_CNI_CONF_DIR"])
	}, netnstest.Patience, 10*time.Millisecond, "it says why")
	assert.Equal(t, http.StatusOK, readyz(), "the old one answers")
	assert.NotContains(t, old.log.String(), "superseded")
	assert.Zero(t, unable.stop())
	assert.NoFileExists(t, unable.socket)

	next := startAgent(t, env, health, sockets+"/c")
	code, stderr = started(next)
	require.Zero(t, code, stderr)
	assert.Contains(t, next.log.String(), `"msg":"serving"`, "it has the address now")
	assert.Equal(t, http.StatusOK, readyz())
	code, stderr = started(old)
	assert.Zero(t, code, stderr)
	assert.Zero(t, next.stop())
	require.Eventually(t, func() bool { return readyz() == http.StatusOK }, netnstest.Patience, 10*time.Millisecond, "the old one acts again, and serves")
	assert.Zero(t, old.stop())

	code, _, stderr = run(t, nil, "started")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "--start-socket")
	_, err = os.Stat(filepath.Join(dir, "run/agent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestStartedAndNotReady: an agent that acts and cannot do its work has started, but says once why not, for its pod's events.
func TestStartedAndNotReady(t *testing.T) {
	_, env := node(t)
	wrong := maps.Clone(env)
	wrong["MESHCNI_CNI_CONF_NAME"] = "99-misspelt.conflist"
	port, err := proctest.FreePort()
	require.NoError(t, err)
	a := startAgent(t, wrong, fmt.Sprintf("127.0.0.1:%d", port), t.TempDir()+"/a")
	require.Eventually(t, func() bool {
		code, _, stderr := run(t, env, "started", "--start-socket", a.socket)
		return code == 1 && strings.Contains(stderr, "named-file-missing: ") && strings.Contains(stderr, "99-misspelt.conflist")
	}, netnstest.Patience, 10*time.Millisecond, "it says why")
	require.Eventually(t, func() bool {
		code, _, _ := run(t, env, "started", "--start-socket", a.socket)
		return code == 0
	}, netnstest.Patience, 10*time.Millisecond, "it is not restarted for that")
	assert.Zero(t, a.stop())
}

// TestStartSocketOfAKilledAgent: the container is started anew in the same pod.
func TestStartSocketOfAKilledAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
	turn := newTurn()
	turn.set(true, false)
	serving, end, err := startServing(turn, serve.Options{Log: quiet()})
	require.NoError(t, err)
	defer end()
	nothing := func() error { return nil }
	stop, err := startSocket(path, &startAnswerer{turn: turn, served: serving, waits: nothing, ready: nothing}, quiet())
	require.NoError(t, err)
	require.NoError(t, askStarted(t.Context(), path, startPatience))
	stop()
	assert.NoFileExists(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = askStarted(ctx, path, startPatience)
	require.Error(t, err)
	assert.True(t, strings.HasPrefix(err.Error(), "ask the agent whether it has started"), err)
}
