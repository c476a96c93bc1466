package netnsstore_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

var addrA, addrB = netip.MustParseAddr("10.244.9.1"), netip.MustParseAddr("10.244.9.2")

// newPodNS returns a namespace with addresses.
func newPodNS(t testing.TB, addrs ...netip.Addr) *netnsexec.NetNS {
	t.Helper()
	ns := netnstest.New(t)
	addAddrs(t, ns, addrs...)
	return ns
}

func addAddrs(t testing.TB, ns *netnsexec.NetNS, addrs ...netip.Addr) {
	t.Helper()
	onLo(t, ns, (*netlink.Handle).AddrAdd, addrs...)
}

func removeAddrs(t testing.TB, ns *netnsexec.NetNS, addrs ...netip.Addr) {
	t.Helper()
	onLo(t, ns, (*netlink.Handle).AddrDel, addrs...)
}

func onLo(t testing.TB, ns *netnsexec.NetNS, do func(*netlink.Handle, netlink.Link, *netlink.Addr) error, addrs ...netip.Addr) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		for _, a := range addrs {
			addr, err := netlink.ParseAddr(netip.PrefixFrom(a, a.BitLen()).String())
			if err == nil {
				err = do(h, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}, addr)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// entries returns the namespaces that a journal has, by pod, and fails the test if it has anything else.
func entries(t testing.TB, runDir string) map[types.UID]netnsexec.ID {
	t.Helper()
	dir := filepath.Join(runDir, "netns")
	files, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return map[types.UID]netnsexec.ID{}
	}
	require.NoError(t, err)
	found := map[types.UID]netnsexec.ID{}
	for _, f := range files {
		name, isFile := strings.CutSuffix(f.Name(), ".json")
		if !isFile {
			assert.FileExists(t, filepath.Join(dir, name+".json"))
			continue
		}
		ns, err := netnsexec.Open(filepath.Join(dir, name))
		if !assert.NoError(t, err) {
			continue
		}
		require.NoError(t, ns.Close())
		var e struct {
			UID      types.UID
			Dev, Ino uint64
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &e))
		assert.Equal(t, types.UID(name), e.UID)
		assert.Equal(t, ns.ID(), netnsexec.ID{Dev: e.Dev, Ino: e.Ino})
		found[e.UID] = ns.ID()
	}
	return found
}

// mountsBelow counts the mounts that this process sees below a directory.
func mountsBelow(t testing.TB, dir string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return strings.Count(string(text), " "+dir+"/")
}

// TestKilledAtEachSystemCall kills an agent before each of the system calls that change the journal. The next one must find in
// the journal nothing but the truth, and remove all else.
func TestKilledAtEachSystemCall(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("strace"))
	a, b := newPodNS(t, addrA), newPodNS(t, addrB)
	for _, call := range []string{"mkdirat", "openat", "write", "mount", "umount2", "renameat", "unlinkat"} {
		t.Run(call, func(t *testing.T) {
			kills := 0
			for survived := false; !survived; kills++ {
				survived = killedAt(t, call, kills+1, a, b)
			}
			want := map[string]int{"mkdirat": 1, "mount": 4, "renameat": 5, "unlinkat": 6, "umount2": 4, "openat": 10, "write": 5}[call]
			assert.GreaterOrEqual(t, kills-1, want, "so often was it killed")
		})
	}
}

func killedAt(t *testing.T, call string, nth int, a, b *netnsexec.NetNS) (survived bool) {
	o := netnsstore.Options{RunDir: t.TempDir()}
	uids := []types.UID{newUID(), newUID(), newUID()}
	args := []string{"-f", "-qq", "-o", "/dev/null", "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, nth)}
	dir := filepath.Join(o.RunDir, "netns")
	args = append(args, "-P", dir)
	for _, uid := range uids {
		for _, suffix := range []string{"", ".json", ".json.new"} {
			args = append(args, "-P", filepath.Join(dir, string(uid)+suffix))
		}
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := childCmd(t, "life", o.RunDir, string(uids[0]), string(uids[1]), string(uids[2]), a.Path(), b.Path())
	cmd.Path, err = exec.LookPath("strace")
	require.NoError(t, err)
	cmd.Args = append(append([]string{"strace"}, args...), exe)
	out, err := cmd.CombinedOutput()
	if err != nil {
		require.Contains(t, err.Error(), "signal: killed", "%s", out)
	}

	s := netnsstore.New(o)
	require.NoError(t, s.Journal())
	found := entries(t, o.RunDir)
	assert.ElementsMatch(t, slices.Collect(maps.Keys(found)), s.Known())
	for uid, id := range found {
		if uid != uids[0] {
			assert.Equal(t, a.ID(), id)
		}
		ref, err := s.Find(t.Context(), netnsstore.Pod{UID: uid, Addrs: map[netnsexec.ID][]netip.Addr{a.ID(): {addrA}, b.ID(): {addrB}}[id]})
		if assert.NoError(t, err) {
			assert.Equal(t, id, ref.ID())
			require.NoError(t, ref.Close())
		}
	}
	assert.Equal(t, len(found), mountsBelow(t, dir))
	require.NoError(t, s.Retain(func(types.UID) bool { return false }))
	assert.Empty(t, entries(t, o.RunDir))
	assert.Zero(t, mountsBelow(t, dir))
	require.NoError(t, s.Close())
	if err == nil {
		assert.Equal(t, map[types.UID]netnsexec.ID{uids[0]: b.ID(), uids[2]: a.ID()}, found)
	}
	return err == nil
}
