package memory

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

// TestGroupLimit: the least limit above a process is found in both versions of control groups, in a container and outside.
func TestGroupLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		groups string
		files  map[string]string
		want   int64
	}{
		"in a container":                          {"0::/\n", map[string]string{"memory.max": "402653184\n"}, 402653184},
		"outside, with limits above it":           {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "900\n", "memory.max": "1000\n"}, 900},
		"of the host, with the container's mount": {"0::/../x/y\n", map[string]string{"memory.max": "7000\n"}, 7000},
		"none": {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, 0},
		"the first version": {"12:cpu,cpuacct:/x\n4:memory:/pod\n0::/\n", map[string]string{"memory/pod/memory.limit_in_bytes": "5000\n",
			"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 5000},
		"the first version, unlimited": {"4:memory:/\n", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"malformed":                    {"0::/\n", map[string]string{"memory.max": "much\n"}, 0},
	} {
		root := fstest.MapFS{"proc/self/cgroup": {Data: []byte(c.groups)}}
		for file, text := range c.files {
			root["sys/fs/cgroup/"+file] = &fstest.MapFile{Data: []byte(text)}
		}
		limit, ok := groupLimit(root)
		assert.Equal(t, c.want, limit, name)
		assert.Equal(t, c.want != 0, ok, name)
	}
	_, ok := groupLimit(fstest.MapFS{})
	assert.False(t, ok)
}
