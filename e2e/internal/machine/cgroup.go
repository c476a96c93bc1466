package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// groupPrefix begins the name of our control groups; the process ID of the outer process ends it.
const groupPrefix = "meshcni-e2e-"

// groups is one control group of each hierarchy of the machine. The pods' are below them.
type groups []string

// hierarchies returns where the machine's control groups are mounted: each hierarchy of version 1, or the one of
// version 2. A hierarchy that is mounted at several places is taken once, at the first.
func hierarchies() (v1, v2 []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	v1, v2 = oneMountEach(string(mounts))
	return v1, v2, nil
}

// oneMountEach reads /proc/PID/mountinfo (proc_pid_mountinfo(5)). Mounts of one hierarchy have one device.
func oneMountEach(mountinfo string) (v1, v2 []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		mount, filesystem, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(mount), strings.Fields(filesystem)
		if len(fields) < 5 || len(kind) == 0 || !strings.HasPrefix(kind[0], "cgroup") || seen[fields[2]] {
			continue
		}
		seen[fields[2]] = true
		switch kind[0] {
		case "cgroup":
			v1 = append(v1, fields[4])
		case "cgroup2":
			v2 = append(v2, fields[4])
		}
	}
	return v1, v2
}

func makeGroups(name string) (made groups, err error) {
	v1, v2, err := hierarchies()
	if err != nil {
		return nil, err
	}
	if len(v1) == 0 {
		// A group has the controllers that its parent hands down.
		for _, top := range v2 {
			if err := handDown(top); err != nil {
				return nil, err
			}
		}
	}
	for _, top := range append(v1, v2...) {
		path := filepath.Join(top, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			return made, fmt.Errorf("make control group: %w", err)
		}
		made = append(made, path)
		if len(v1) == 0 {
			if err := handDown(path); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

func handDown(path string) error {
	available, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(available)) {
		if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("hand down controller %s: %w", c, err)
		}
	}
	return nil
}

// remove removes the groups and all below them. Their processes have been killed, but the last may take a moment to go.
func (g groups) remove() error {
	var errs []error
	for _, top := range g {
		if err := proctest.Poll(netnstest.Patience, func() error { return removeTree(top) }); err != nil {
			errs = append(errs, fmt.Errorf("remove control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// RemoveGroups removes the control groups of containers, which are below the machine's. Their processes have been killed.
func RemoveGroups() error {
	v1, v2, err := hierarchies()
	if err != nil {
		return err
	}
	var below groups
	for _, top := range append(v1, v2...) {
		found, err := filepath.Glob(filepath.Join(top, CgroupParent(), "*", "cgroup.procs"))
		if err != nil {
			return err
		}
		for _, procs := range found {
			below = append(below, filepath.Dir(procs))
		}
	}
	return below.remove()
}

func removeTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		if err = syscall.Rmdir(dirs[i]); errors.Is(err, syscall.ENOENT) {
			err = nil
		}
	}
	return err
}

// removeMachine removes the groups of the machine of a name, as far as they were made.
func removeMachine(name string) error {
	v1, v2, err := hierarchies()
	if err != nil {
		return err
	}
	var all groups
	for _, top := range append(v1, v2...) {
		all = append(all, filepath.Join(top, name))
	}
	return all.remove()
}

// removeOrphans removes the groups of runs that were killed together with what clears up after them.
func removeOrphans() error {
	v1, v2, err := hierarchies()
	if err != nil {
		return err
	}
	for _, top := range append(v1, v2...) {
		found, err := filepath.Glob(filepath.Join(top, groupPrefix+"*"))
		if err != nil {
			return err
		}
		for _, path := range found {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), groupPrefix))
			if err != nil || syscall.Kill(pid, 0) == nil {
				continue
			}
			if err := (groups{path}).remove(); err != nil {
				return err
			}
		}
	}
	return nil
}

// MakeGroup makes a control group below the machine's own, of a name, for what shall count as another machine. It goes with the machine's.
func MakeGroup(name string) error {
	_, err := makeGroups(CgroupParent()[1:] + "/" + name)
	return err
}
