package machine_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// outside is set by the outer process, for the inner one to compare with.
const outside = "MACHINE_TEST_OUTSIDE"

func TestMain(m *testing.M) {
	machine.Main(m, machine.Options{
		Build: func() error {
			ns, err := os.Readlink("/proc/self/ns/net")
			if err != nil {
				return err
			}
			return os.Setenv(outside, ns)
		},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Empty:     []string{"/etc/init.d", "/opt/cni/bin"},
		Memory:    []string{"/var/lib/machine-test"},
	})
}

func TestMachine(t *testing.T) {
	machine.Require(t)
	ns, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.NotEqual(t, os.Getenv(outside), ns)

	t.Run("files", func(t *testing.T) {
		assert.FileExists(t, "/etc/passwd", "what the machine has is there")
		for _, dir := range []string{"/etc/init.d", "/opt/cni/bin", "/run/netns", "/var/lib/machine-test"} {
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, entries, dir)
		}
		// In memory, so that it can hold overlays; all else that is written lies over the machine's own.
		mounts, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		for _, want := range []string{"overlay /etc overlay", "overlay /opt overlay", "overlay /var overlay", "tmpfs /var/lib/machine-test tmpfs", "tmpfs /run tmpfs"} {
			assert.Contains(t, string(mounts), want)
		}
	})
	t.Run("processes", func(t *testing.T) {
		dirs, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(t, err)
		assert.LessOrEqual(t, len(dirs), 4, "the first process, this one and what they run")
		group, err := os.Stat(firstHierarchy(t) + machine.CgroupParent())
		require.NoError(t, err)
		assert.True(t, group.IsDir())
	})
	t.Run("network", func(t *testing.T) {
		for _, address := range []string{"192.0.2.1:0", "[2001:db8::1]:0", "127.0.0.1:0", "[::1]:0"} {
			l, err := net.Listen("tcp", address)
			require.NoError(t, err)
			require.NoError(t, l.Close())
		}
		interfaces, err := net.Interfaces()
		require.NoError(t, err)
		for _, i := range interfaces {
			assert.True(t, i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagUp == 0, "interface %s is up", i.Name)
		}
		forwards, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		require.NoError(t, err)
		assert.Equal(t, "1\n", string(forwards))
	})
}

// firstHierarchy is where some control groups are mounted.
func firstHierarchy(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.HasPrefix(f[2], "cgroup") {
			return f[1]
		}
	}
	require.Fail(t, "no control groups are mounted")
	return ""
}
