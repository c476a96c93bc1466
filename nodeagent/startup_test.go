//go:build linux

package nodeagent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestStarted: the agents of an update share an address, and the startup probe asks the one that it is about. A new one that could not do
// its work has not started, says why, and leaves the address and the node to the one before it; one that can takes both over.
func TestStarted(t *testing.T) {
	dir, o := node(t)
	port, err := proctest.FreePort()
	require.NoError(t, err)
	o.Config.HealthAddress = fmt.Sprintf("127.0.0.1:%d", port)
	ready := "http://" + o.Config.HealthAddress + "/readyz"
	sockets := t.TempDir()
	begin := func(o Options, pod string) (a *agentRun, started func(time.Duration) error) {
		o.Config.StartSocket = filepath.Join(sockets, pod)
		return start(t, o), func(patience time.Duration) error { return AwaitStarted(t.Context(), o.Config.StartSocket, patience) }
	}
	readyAgain := func(why string) {
		t.Helper()
		require.Eventually(t, func() bool { return statusCode(ready) == http.StatusOK }, netnstest.Patience, 10*time.Millisecond, why)
	}

	old, oldStarted := begin(o, "a")
	hasStarted(t, oldStarted)
	readyAgain("the first agent")

	wrong := o
	wrong.Config.CNIConfDir = t.TempDir()
	unable, started := begin(wrong, "b")
	require.Eventually(t, func() bool {
		err := started(0)
		return err != nil && strings.Contains(err.Error(), wrong.Config.CNIConfDir)
	}, netnstest.Patience, 10*time.Millisecond, "it says why")
	assert.Equal(t, http.StatusOK, statusCode(ready), "the old one answers")
	assert.NotContains(t, old.log.String(), "superseded")
	require.NoError(t, unable.end())
	assert.NoFileExists(t, sockets+"/b")

	next, started := begin(o, "c")
	hasStarted(t, started)
	assert.Contains(t, next.log.String(), `"msg":"serving"`, "it has the address now")
	readyAgain("the next one")
	hasStarted(t, oldStarted)
	require.NoError(t, old.Ready(), "it is about to be stopped")
	require.NoError(t, next.end())
	readyAgain("the old one acts again, and serves")
	require.NoError(t, old.end())
	_, err = os.Stat(filepath.Join(dir, "run/agent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// hasStarted waits until an agent has. On a busy machine that is longer than a probe waits.
func hasStarted(t *testing.T, started func(time.Duration) error) {
	t.Helper()
	require.Eventually(t, func() bool { return started(StartPatience) == nil }, netnstest.Patience, 10*time.Millisecond, "it has started")
}

// TestStartedAndNotReady: an agent that acts and cannot do its work has started, but says once why not, for its pod's events.
func TestStartedAndNotReady(t *testing.T) {
	_, o := node(t)
	port, err := proctest.FreePort()
	require.NoError(t, err)
	o.Config.CNIConfName, o.Config.HealthAddress, o.Config.StartSocket = "99-misspelt.conflist", fmt.Sprintf("127.0.0.1:%d", port), t.TempDir()+"/a"
	a := start(t, o)
	require.Eventually(t, func() bool {
		err := AwaitStarted(t.Context(), o.Config.StartSocket, StartPatience)
		return err != nil && strings.Contains(err.Error(), "named-file-missing: ") && strings.Contains(err.Error(), "99-misspelt.conflist")
	}, netnstest.Patience, 10*time.Millisecond, "it says why")
	require.Eventually(t, func() bool { return AwaitStarted(t.Context(), o.Config.StartSocket, StartPatience) == nil }, netnstest.Patience, 10*time.Millisecond, "it is not restarted for that")
	require.NoError(t, a.end())
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
	require.NoError(t, AwaitStarted(t.Context(), path, StartPatience))
	stop()
	assert.NoFileExists(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = AwaitStarted(ctx, path, StartPatience)
	require.Error(t, err)
	assert.True(t, strings.HasPrefix(err.Error(), "ask the agent whether it has started"), err)
}

// TestAnotherProgramHasTheAddress: an agent whose address another program has does not start, and says so at its socket, in the node's events
// and in its log; what the other one answers is nobody's health.
func TestAnotherProgramHasTheAddress(t *testing.T) {
	for _, host := range []string{"0.0.0.0", "127.0.0.1"} {
		t.Run(host, func(t *testing.T) {
			_, o := node(t)
			events := eventsOf(t, &o)
			l, err := net.Listen("tcp", host+":0")
			require.NoError(t, err)
			stranger := &http.Server{Handler: http.NotFoundHandler()} //nolint:gosec // a test's
			go func() { _ = stranger.Serve(l) }()
			defer func() { _ = stranger.Close() }()
			_, port, err := net.SplitHostPort(l.Addr().String())
			require.NoError(t, err)
			o.Config.HealthAddress, o.Config.StartSocket = "127.0.0.1:"+port, filepath.Join(t.TempDir(), "a")
			a := start(t, o)
			e := <-events
			assert.Equal(t, []string{"AddressTaken", "Warning"}, []string{e.Reason, e.Type})
			assert.Contains(t, e.Message, "the agent cannot listen on 127.0.0.1:"+port+", where another program may answer in its name; end that program")
			err = AwaitStarted(t.Context(), o.Config.StartSocket, 0)
			require.EqualError(t, err, "address-taken: the agent cannot listen on 127.0.0.1:"+port+", where another program may answer in its name")
			require.NoError(t, Ask(t.Context(), o.Config.StartSocket, "/healthz"))
			require.NoError(t, Ask(t.Context(), o.Config.StartSocket, "/readyz"), "its own answer")
			assert.Contains(t, strings.Join(news.Warnings(a.Status().News), "\n"), "address-taken: ")
			assert.Contains(t, a.log.String(), `"code":"address-taken"`)

			require.NoError(t, stranger.Close())
			hasStarted(t, func(patience time.Duration) error { return AwaitStarted(t.Context(), o.Config.StartSocket, patience) })
			assert.NotContains(t, strings.Join(news.Warnings(a.Status().News), "\n"), "address-taken")
			require.NoError(t, a.end())
			require.ErrorContains(t, Ask(t.Context(), o.Config.StartSocket, "/readyz"), "ask the agent at its socket: ")
		})
	}
}

// TestAskAnAgentThatIsNotReady: the probe's error is what its event says.
func TestAskAnAgentThatIsNotReady(t *testing.T) {
	_, o := node(t)
	o.Config.CNIConfName, o.Config.StartSocket = "99-misspelt.conflist", filepath.Join(t.TempDir(), "a")
	a := start(t, o)
	require.Eventually(t, func() bool {
		err := Ask(t.Context(), o.Config.StartSocket, "/readyz")
		return err != nil && strings.HasPrefix(err.Error(), "named-file-missing: ")
	}, netnstest.Patience, 10*time.Millisecond)
	require.NoError(t, Ask(t.Context(), o.Config.StartSocket, "/healthz"))
	require.NoError(t, a.end())
}
