package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// LosePower does to the machine what a loss of power does, as far as containers go: none of their processes is left, nor a mount
// below the directories mounted, a control group, a rule for their addresses, or a file that matches one of the patterns of what
// is in memory. What is in [Dir] stays, as does what was on the disk. The runtime's daemon must not run.
func LosePower(mounted []string, memory ...string) error {
	if err := proctest.Poll(5*time.Minute, killContainers); err != nil {
		return fmt.Errorf("kill the containers: %w", err)
	}
	if err := unmountBelow(mounted); err != nil {
		return err
	}
	for _, pattern := range memory {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range found {
			if path == Dir {
				continue
			}
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"-F", "-X"} {
			if out, err := exec.Command(program, "-t", "nat", what).CombinedOutput(); err != nil {
				return fmt.Errorf("%s -t nat %s: %w: %s", program, what, err, out)
			}
		}
	}
	return RemoveGroups()
}

func unmountBelow(dirs []string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[1]
		if point == Dir || strings.HasPrefix(point, Dir+"/") {
			continue
		}
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(point, dir+"/") }) {
			points = append(points, point)
		}
	}
	slices.Reverse(points)
	return unmount(points)
}

// unmount passes over what is gone: it went with its like elsewhere, or its owner has removed it and its directory since.
func unmount(points []string) error {
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	return nil
}

// monitors are the programs by which runtimes look after containers.
var monitors = []string{"containerd-shim-runc-v2", "conmon"}

// killContainers kills the processes of containers and those that look after them, and returns an error while there are any.
func killContainers() error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if strings.Contains(string(stat), ") Z ") {
			continue
		}
		if strings.Contains(string(groups), CgroupParent()+"/") || slices.Contains(monitors, filepath.Base(exe)) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return err
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
			errs = append(errs, fmt.Errorf("process %d of %s runs", pid, exe))
		}
	}
	return errors.Join(errs...)
}
