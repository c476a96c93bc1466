package containerd

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

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/proctest"
)

// LosePower does to the machine what a loss of power does, as far as containers go: none of their processes is left, nor a mount,
// a network namespace, a control group or a rule for their addresses, and nothing of the runtime in /run. What was on the disk stays. more are other
// directories in memory. [Runtime.Boot] starts the runtime again.
func (r *Runtime) LosePower(more ...string) error {
	r.Kill()
	if err := proctest.Poll(time.Minute, killContainers); err != nil {
		return fmt.Errorf("kill the containers: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[1]
		for _, dir := range []string{State, "/run/netns", kubeletPods} {
			if strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	slices.Reverse(points)
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	for _, pattern := range append([]string{State + "/*", "/run/netns/*"}, more...) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range found {
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
	return machine.RemoveGroups()
}

// kubeletPods has pods' volumes, some of which are mounts.
const kubeletPods = "/var/lib/kubelet/pods"

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
		if strings.Contains(string(groups), machine.CgroupParent()+"/") || filepath.Base(exe) == "containerd-shim-runc-v2" {
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
