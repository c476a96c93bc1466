//go:build linux

package podrules_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/podnetns"
	"github.com/meshcni/meshcni/internal/podrules"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/status"
)

// TestNamespaceThatIsNotToBeSeen: a namespace is gone only where it would be seen. Else the agent may not look.
func TestNamespaceThatIsNotToBeSeen(t *testing.T) {
	const mayNot = "the agent may not look into the pod"
	host := t.TempDir()
	record := attachment.Record{Pod: status.ID{UID: "00000000-0000-4000-8000-000000000000"}, NetNS: attachment.NetNS{Path: "/run/meshcni-test/cni-1"}}

	_, err := podrules.Look(t.Context(), record, podnetns.Wanted{}, host)
	require.ErrorContains(t, err, mayNot)
	require.ErrorContains(t, err, record.NetNS.Path)
	require.NotErrorIs(t, err, netnsexec.ErrGone)

	dir := filepath.Join(host, "run/meshcni-test")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	_, err = podrules.Look(t.Context(), record, podnetns.Wanted{}, host)
	require.ErrorIs(t, err, netnsexec.ErrGone, "the host's directory has no such file")
	assert.NotContains(t, err.Error(), mayNot)

	netnstest.Require(t, netnstest.Root)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cni-1"), nil, 0o600))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, unix.Setfsuid(65534))
	_, err = podrules.Look(t.Context(), record, podnetns.Wanted{}, host)
	require.NoError(t, unix.Setfsuid(0))
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, mayNot)
}
