//go:build linux

// Package podproctest starts real processes that look like a pod's in /proc: in a pod's control group and in a network
// namespace of the test's choice.
package podproctest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// roots are possible mount points of a hierarchy in which processes can be moved without a controller: version 2 alone or
// beside version 1, then two harmless ones of version 1.
var roots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"}

// Cgroups is the need for a hierarchy of control groups to create groups in.
var Cgroups = netnstest.Need{Name: "a writable control group hierarchy", Check: func() error {
	_, err := root()
	return err
}}

func root() (string, error) {
	var errs []error
	for _, r := range roots {
		err := unix.Access(filepath.Join(r, "cgroup.procs"), unix.W_OK)
		if err == nil {
			return r, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", r, err))
	}
	return "", errors.Join(errs...)
}

// NewUID returns a new pod's UID.
func NewUID() string { return string(uuid.NewUUID()) }

// Plain puts the UID into a control group's path as the cgroupfs driver does.
func Plain(format, uid string) string { return fmt.Sprintf(format, uid) }

// Underscored puts the UID into a control group's path as systemd's driver does.
func Underscored(format, uid string) string {
	return fmt.Sprintf(format, strings.ReplaceAll(uid, "-", "_"))
}

// Start starts an idle process in a network namespace (nil: the test's) and a control group. The test ends it and removes
// the group. It requires root and [Cgroups].
func Start(tb testing.TB, ns *netnsexec.NetNS, cgroup string) *os.Process {
	tb.Helper()
	return StartCommand(tb, exec.Command("sleep", "infinity"), ns, cgroup)
}

// StartCommand is [Start] for another program than an idle one.
func StartCommand(tb testing.TB, cmd *exec.Cmd, ns *netnsexec.NetNS, cgroup string) *os.Process {
	tb.Helper()
	netnstest.Require(tb, netnstest.Root, Cgroups)
	dir := Group(tb, cgroup)
	start := cmd.Start
	if ns != nil {
		start = func() error { return ns.Do(cmd.Start) }
	}
	if err := start(); err != nil {
		tb.Fatalf("start process: %v", err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
	})
	pid := []byte(strconv.Itoa(cmd.Process.Pid))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0); err != nil {
		tb.Fatalf("move process into its control group: %v", err)
	}
	// Start times are in ticks of 10 ms; the next process is to be younger.
	time.Sleep(20 * time.Millisecond)
	return cmd.Process
}

// Group makes a control group, and returns its directory. The test removes it.
func Group(tb testing.TB, cgroup string) (dir string) {
	tb.Helper()
	base, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	dir = filepath.Join(base, cgroup)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatalf("make control group: %v", err)
	}
	tb.Cleanup(func() { removeGroups(tb, base, dir) })
	return dir
}

// Own gives a control group, and those below it that lead to another, to a user, as it is delegated to.
func Own(tb testing.TB, from, cgroup string, user int) {
	tb.Helper()
	base, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	for dir := cgroup; len(dir) >= len(from); dir = filepath.Dir(dir) {
		if err := os.Chown(filepath.Join(base, dir), user, user); err != nil {
			tb.Fatalf("delegate control group: %v", err)
		}
	}
}

// Runs waits until a process runs a program.
func Runs(tb testing.TB, process *os.Process, program string) {
	tb.Helper()
	waittest.Eventually(tb, "runs "+program, func() error {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process.Pid))
		if err == nil && strings.TrimSpace(string(comm)) != program {
			err = fmt.Errorf("it runs %s", comm)
		}
		return err
	})
}

// StartDeep is [Start] in groups nested below the given one until their path is longer than the kernel prints: to read /proc/PID/cgroup is
// then ENAMETOOLONG before Linux 6.8, and the beginning of the path since. Any process that may make groups in its container can do so.
func StartDeep(tb testing.TB, ns *netnsexec.NetNS, cgroup string) *os.Process {
	tb.Helper()
	process := Start(tb, ns, cgroup)
	base, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.OpenRoot(filepath.Join(base, cgroup))
	if err != nil {
		tb.Fatalf("open control group: %v", err)
	}
	name := strings.Repeat("g", unix.NAME_MAX)
	for range unix.PathMax/len(name) + 1 {
		above := dir
		if err := above.Mkdir(name, 0o755); err != nil {
			tb.Fatalf("make nested control group: %v", err)
		}
		tb.Cleanup(func() {
			_ = process.Kill()
			_, _ = process.Wait()
			for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
				if err := above.Remove(name); err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
					if err != nil {
						tb.Errorf("remove nested control group: %v", err)
					}
					_ = above.Close()
					return
				}
			}
		})
		if dir, err = above.OpenRoot(name); err != nil {
			tb.Fatalf("open nested control group: %v", err)
		}
	}
	defer func() { _ = dir.Close() }()
	if err := dir.WriteFile("cgroup.procs", []byte(strconv.Itoa(process.Pid)), 0); err != nil {
		tb.Fatalf("move process into its control group: %v", err)
	}
	return process
}

// removeGroups removes the group and the empty ones above it. A group stays busy for a moment after its last process ends.
func removeGroups(tb testing.TB, base, dir string) {
	deadline := time.Now().Add(5 * time.Second)
	for dir != base {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			dir = filepath.Dir(dir)
		case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTEMPTY):
			procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			entries, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
			if len(procs) > 0 || len(entries) > 0 {
				return // another's
			}
			if time.Now().After(deadline) {
				tb.Errorf("remove control group %s: %v", dir, err)
				return
			}
			time.Sleep(time.Millisecond)
		default:
			tb.Errorf("remove control group %s: %v", dir, err)
			return
		}
	}
}
