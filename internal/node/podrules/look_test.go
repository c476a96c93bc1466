//go:build linux

package podrules_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// TestNamespaceThatIsNotToBeSeen: a namespace is gone only where it would be seen. Else the agent may not look.
func TestNamespaceThatIsNotToBeSeen(t *testing.T) {
	const mayNot = "the agent may not look into the pod"
	host := t.TempDir()
	record := attachment.Record{Pod: status.ID{UID: "00000000-0000-4000-8000-000000000000"}, NetNS: attachment.NetNS{Path: "/run/meshcni-test/cni-1", Dev: 4, Ino: 7}}

	_, err := podrules.Look(t.Context(), inventory.New(inventory.Options{}), netnsstore.Pod{}, record, host)
	require.ErrorContains(t, err, mayNot)
	require.ErrorContains(t, err, record.NetNS.Path)
	require.NotErrorIs(t, err, netnsexec.ErrGone)

	dir := filepath.Join(host, "run/meshcni-test")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	_, err = podrules.Look(t.Context(), inventory.New(inventory.Options{}), netnsstore.Pod{}, record, host)
	require.ErrorIs(t, err, netnsexec.ErrGone, "the host's directory has no such file")
	assert.NotContains(t, err.Error(), mayNot)

	netnstest.Require(t, netnstest.Root)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cni-1"), nil, 0o600))
	record.NetNS.Path = filepath.Join(dir, "cni-1") // in our own root, which is looked at by this thread
	host = ""
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, unix.Setfsuid(65534))
	_, err = podrules.Look(t.Context(), inventory.New(inventory.Options{}), netnsstore.Pod{}, record, host)
	require.NoError(t, unix.Setfsuid(0))
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, mayNot)
}

// TestLookWithoutRecordOrProcess: what the runtime's cache names is looked into too, such as a pod whose check crash-loops where no pause
// process runs, and whose record is gone. Neither a namespace without the pod's addresses is, nor one with other numbers than the record's.
func TestLookWithoutRecordOrProcess(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	const uid = "00000000-0000-4000-8000-00000000c0de"
	ns := netnstest.NewWorld(t, netnstest.Options{}).Pod
	cache := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "results"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(cache, "results", "k8s-c1-eth0"), fmt.Appendf(nil, `{"kind":"cniCacheV1","containerId":"c1","networkName":"k8s","ifName":"eth0","netns":%q,
		"cniArgs":[["K8S_POD_UID",%q]],"result":{"ips":[{"address":"10.244.1.5/24"}]}}`, ns.Path(), uid), 0o600))
	known := inventory.New(inventory.Options{CacheDir: cache})
	record := attachment.Record{Pod: status.ID{UID: uid}}

	live, err := podrules.Look(t.Context(), known, netnsstore.Pod{}, record, "")
	require.NoError(t, err)
	assert.Equal(t, ns.Path(), live.NetNS)
	_, err = podrules.Look(t.Context(), known, netnsstore.Pod{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.77")}}, record, "")
	require.ErrorIs(t, err, netnsstore.ErrAddress)
	_, err = podrules.Look(t.Context(), inventory.New(inventory.Options{}), netnsstore.Pod{}, record, "")
	require.ErrorIs(t, err, netnsstore.ErrNoProcess)
	record.NetNS = attachment.NetNS{Path: ns.Path(), Dev: ns.ID().Dev, Ino: ns.ID().Ino + 1}
	_, err = podrules.Look(t.Context(), inventory.New(inventory.Options{}), netnsstore.Pod{}, record, "")
	require.ErrorIs(t, err, netnsstore.ErrForeign)
	record.NetNS.Ino, record.Pod = ns.ID().Ino, status.ID{Namespace: "shop", Name: "cart"}
	live, err = podrules.Look(t.Context(), known, netnsstore.Pod{}, record, "")
	require.NoError(t, err, "of a runtime that names no UID")
	assert.Equal(t, ns.Path(), live.NetNS)
}
