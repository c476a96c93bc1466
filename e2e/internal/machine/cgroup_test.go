package machine

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestOneMountEach: a hierarchy that is mounted at two places is taken once. In the second group of mounts two
// controllers share a hierarchy, and one is mounted a second time by a bind mount of a group in it.
func TestOneMountEach(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo string
		v1, v2    []string
	}{
		"version 2, twice": {`25 22 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
61 40 0:26 / /run/lib/cgroup rw - cgroup2 none rw
`, nil, []string{"/sys/fs/cgroup"}},
		"both versions": {`31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/memory rw shared:11 master:1 - cgroup cgroup rw,memory
33 25 0:28 /below /mnt/memory rw - cgroup cgroup rw,memory
34 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
35 25 0:27 / /cpu rw - cgroup cgroup rw,cpu,cpuacct
`, []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"}, []string{"/sys/fs/cgroup/unified"}},
		"none": {"25 22 0:22 / /sys rw - sysfs sysfs rw\n", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			v1, v2 := oneMountEach(c.mountinfo)
			assert.Equal(t, c.v1, v1)
			assert.Equal(t, c.v2, v2)
		})
	}
}
