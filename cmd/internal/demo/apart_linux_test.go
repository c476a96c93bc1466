package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// inApart is set in the process that has mounts and processes of its own.
const inApart = "MESHCNI_DEMO_APART"

// apart runs the tests in a process with mounts and processes of its own. The kernel ends them all with it, so that even a demo which is
// killed leaves nothing mounted.
func apart(run func() int) int {
	if os.Geteuid() != 0 {
		return run() // each test says what it needs
	}
	if os.Getenv(inApart) != "" {
		if err := errors.Join(
			os.Unsetenv(inApart),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("proc", "/proc", "proc", 0, ""),
		); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return run()
	}
	runtime.LockOSThread()                                // the child is killed when this thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:gosec // itself
	cmd.Env = append(os.Environ(), inApart+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// mounts are the lines of our mounts of namespaces below a directory.
func mounts(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return !strings.Contains(line, " - nsfs ") || !strings.Contains(line, dir) })
}

// TestInterrupted: whatever ends a demo, it leaves no mount of a pod's namespace, which would keep that alive.
func TestInterrupted(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("ip"), netnstest.Binary("iptables"), podproctest.Cgroups)
	for _, signal := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestDemo$") //nolint:gosec // itself
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			cmd.Stderr = cmd.Stdout
			require.NoError(t, cmd.Start())
			seen := bufio.NewScanner(out)
			for seen.Scan() && !strings.Contains(seen.Text(), ": captured; annotation") {
				t.Log(seen.Text())
			}
			target := cmd.Process.Pid
			if signal != unix.SIGKILL {
				target = -target // as a terminal does
			}
			require.NoError(t, syscall.Kill(target, signal))
			_, _ = io.Copy(io.Discard, out) // until the last process has ended
			assert.Error(t, cmd.Wait(), "it was not over yet")
			assert.Empty(t, mounts(t, dir))
		})
	}
}
