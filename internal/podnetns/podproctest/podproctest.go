//go:build linux

// Package podproctest makes real processes that look like a pod's to whoever reads
// /proc: in a pod's control groups and in a network namespace of the test's choice.
package podproctest

import (
	"crypto/rand"
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

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// roots are where a hierarchy of control groups may be mounted that processes can
// be moved in without a controller: version 2 alone or beside version 1, then the named
// one and a harmless one of version 1.
var roots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"}

// Cgroups is the need for a hierarchy of control groups to make groups in.
var Cgroups = netnstest.Needing("a writable control group hierarchy", func() error {
	_, err := root()
	return err
})

func root() (string, error) {
	var errs []error
	for _, r := range roots {
		if _, err := os.Stat(filepath.Join(r, "cgroup.procs")); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := unix.Access(r, unix.W_OK); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r, err))
			continue
		}
		return r, nil
	}
	return "", errors.Join(errs...)
}

// NewUID makes a pod's UID that no other has.
func NewUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Plain puts the UID into a control group's path as the cgroupfs driver does.
func Plain(format, uid string) string { return fmt.Sprintf(format, uid) }

// Underscored puts the UID into a control group's path as systemd's driver does.
func Underscored(format, uid string) string {
	return fmt.Sprintf(format, strings.ReplaceAll(uid, "-", "_"))
}

// Start starts a process that does nothing, in the namespace (nil: that of the test)
// and in the control group of the path, and ends it with the test. The group is
// taken away too. It requires root and [Cgroups].
func Start(tb testing.TB, ns *netnsexec.NetNS, cgroup string) *os.Process {
	tb.Helper()
	netnstest.Require(tb, netnstest.Root, Cgroups)
	base, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(base, cgroup)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatalf("make control group: %v", err)
	}
	cmd := exec.Command("sleep", "infinity")
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
		removeGroups(tb, base, dir)
	})
	pid := []byte(strconv.Itoa(cmd.Process.Pid))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0); err != nil {
		tb.Fatalf("move process into its control group: %v", err)
	}
	// Start times are in ticks of 10 ms; the next process is to be younger.
	time.Sleep(20 * time.Millisecond)
	return cmd.Process
}

// removeGroups removes the group and those above it that are empty. A group stays
// busy for a moment after its last process.
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
