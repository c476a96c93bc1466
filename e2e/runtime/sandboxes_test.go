package runtime

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
)

// testSandbox: the other tests rely on this: a pod runs as its kubelet would ask for, also when the runtime crashes.
func testSandbox(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	ctx := t.Context()
	s := n.run(t, plain(n.namespace(t), "web"))
	serving(t, s)
	ips := addrs(t, s)
	require.Len(t, ips, 1)
	assert.True(t, netip.MustParsePrefix("10.88.7.0/24").Contains(ips[0]))
	out, err := s.Exec(ctx, "app", image.ToolPath, "probe", "tcp:127.0.0.1:8080", "tcp:127.0.0.1:81")
	require.NoError(t, err)
	assert.Equal(t, "app:8080 orig=127.0.0.1:8080 peer=127.0.0.1\nrefused\n", out)
	status, err := s.Exec(ctx, "app", image.ToolPath, "cat", "/proc/self/status")
	require.NoError(t, err)
	assert.Contains(t, status, "Uid:\t1000\t1000")
	_, err = s.Exec(ctx, "app", image.ToolPath, "cat", "/none")
	require.ErrorContains(t, err, "no such file")

	netns, err := s.NetNS(ctx)
	require.NoError(t, err)
	require.FileExists(t, netns)
	n.Kill()
	require.NoError(t, n.Boot())
	require.NoError(t, n.RemoveAll(ctx))
	require.NoFileExists(t, netns)
	n.nothingLeft(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		assert.NotContains(t, line, "/sandboxes/", "left mounted")
	}
}
