package memory

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// unlimited is more than any machine has: what the first version of control groups shows where there is no limit is below it by a page.
const unlimited = math.MaxInt64 / 2

// groupLimit returns the least memory limit, in bytes, of the control groups that this process is in, and false if there is none.
// Where the container has no namespace of its own for control groups, the path that the kernel shows is not the one that is
// mounted; the limit is then that of the mount's root.
func groupLimit(root fs.FS) (limit int64, ok bool) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, dir, _ := strings.Cut(rest, ":")
		base, name := "sys/fs/cgroup", "memory.max"
		if number != "0" || controllers != "" {
			if !slices.Contains(strings.Split(controllers, ","), "memory") {
				continue
			}
			base, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for dir = path.Join("/", dir); ; dir = path.Dir(dir) {
			value, err := fs.ReadFile(root, path.Join(base, dir, name))
			if n, errNumber := strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64); err == nil && errNumber == nil && n > 0 && n < unlimited && (!ok || n < limit) {
				limit, ok = n, true
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, ok
}
