//go:build linux

package nodecmd

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/uninstallwait"
)

// TestAwaitUninstall: success is told with what remains, and a failure names each node and says what to do.
func TestAwaitUninstall(t *testing.T) {
	t.Parallel() // it waits for its timeout
	status := `{"state":{"terminated":{"exitCode":0}}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/pods") {
			fmt.Fprintf(w, `{"kind":"PodList","items":[{"metadata":{"name":"u","ownerReferences":[{"uid":"7"}]},"spec":{"nodeName":"node-7"},"status":{"containerStatuses":[%s]}}]}`, status)
			return
		}
		fmt.Fprint(w, `{"kind":"DaemonSet","metadata":{"name":"u","uid":"7"},"status":{"desiredNumberScheduled":1}}`)
	}))
	defer s.Close()
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	account := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte("token"), 0o600))
	env := map[string]string{"POD_NAMESPACE": "mesh", "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PROTOCOL": "http"}
	args := []string{"await-uninstall", "--daemonset-name=u", "--service-account-dir=" + account, "--timeout=10s", "--agent-prefix=agent-"}
	code, stdout, stderr := run(t, env, append(args, "--timeout=1m")...)
	assert.Zero(t, code, stderr)
	assert.True(t, strings.HasPrefix(stdout, "The plugin is uninstalled on all 1 nodes. New pods are not captured.\nPods that run with a sidecar keep their rules, "), stdout)
	status = `{"state":{"terminated":{"exitCode":1,"message":"read-only file system"}}}`
	code, _, stderr = run(t, env, args...)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "the plugin may be left on these nodes, after 10s:\n")
	assert.Contains(t, stderr, "node-7: exit code 1: read-only file system\n")
	assert.Contains(t, stderr, `run "meshcni-node uninstall" on them`)

	code, _, stderr = run(t, nil, "await-uninstall", "--daemonset-name=u")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "--pod-namespace, --daemonset-name and --kubernetes-service-host are required")
}

// TestManyNodesAreCounted: an error does not grow with the cluster.
func TestManyNodesAreCounted(t *testing.T) {
	pending := make([]uninstallwait.Pending, 5000)
	said := uncleaned(meshcni.Identity{}, pending, time.Second).Error()
	assert.Contains(t, said, "… and 4900 more")
}

// TestUninstallAfterAgent: an agent that runs is let end first, or the uninstall fails and leaves what is there.
func TestUninstallAfterAgent(t *testing.T) {
	dir, env := node(t)
	code, _, stderr := run(t, env, "install", "--once")
	require.Zero(t, code, stderr)
	file := filepath.Join(dir, "net.d/10-calico.conflist")
	lease, err := os.Create(filepath.Join(dir, "run/agent"))
	require.NoError(t, err)
	defer func() { _ = lease.Close() }()
	require.NoError(t, unix.Flock(int(lease.Fd()), unix.LOCK_EX))
	code, _, stderr = run(t, env, "uninstall", "--await-agent=1ms")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "waiting for the node's agent to end")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(data), `"meshcni"`)
	require.NoError(t, unix.Flock(int(lease.Fd()), unix.LOCK_UN))
	code, _, stderr = run(t, env, "uninstall", "--await-agent=1m")
	assert.Zero(t, code, stderr)
	data, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, calico, string(data))
	assert.NoFileExists(t, filepath.Join(dir, "run/uninstalled"), "nobody is told to rest")
}
