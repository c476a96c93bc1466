package cluster_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// agentPid is the process of the agent's container.
func agentPid(t *testing.T) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil && exe == "/usr/local/bin/meshcni-node" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			require.NoError(t, err)
			return pid
		}
	}
	require.Fail(t, "the agent does not run")
	return 0
}

var capabilities = map[string]int{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_CHROOT": unix.CAP_SYS_CHROOT, "SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// assertConfined holds a process to its container's security context: these capabilities, in no set any other, no way to
// more, a filter of system calls, and nothing to write to but its volumes.
func assertConfined(t *testing.T, pid int, wanted []string) {
	t.Helper()
	var mask uint64
	for _, name := range wanted {
		bit, ok := capabilities[name]
		require.True(t, ok, name)
		mask |= 1 << bit
	}
	status := map[string]string{}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		status[key] = strings.TrimSpace(value)
	}
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
		assert.Equal(t, fmt.Sprintf("%016x", mask), status[set], set)
	}
	assert.Equal(t, "1", status["NoNewPrivs"])
	assert.Equal(t, "2", status["Seccomp"], "a filter")

	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	require.NoError(t, err)
	for _, m := range strings.Split(strings.TrimSpace(string(mounts)), "\n") {
		fields := strings.Fields(m)
		point, options := fields[4], fields[5]
		if strings.HasPrefix(options, "rw") && !within(point, "/proc") && !within(point, "/dev") {
			assert.Contains(t, []string{"/host/opt/cni/bin", "/host/etc/cni/net.d", "/run/meshcni", "/var/run/meshcni"}, point, "can be written to")
		}
	}
}
