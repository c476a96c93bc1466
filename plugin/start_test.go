//go:build linux

package plugin_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestInitialisers bounds what the plugin's program allocates before main, at each ADD. Nine tenths of it is the types of Kubernetes and what
// they import. What a package of ours makes at package level and an ADD need not have is code, or sync.OnceValue.
func TestInitialisers(t *testing.T) {
	const most, mostOfOurs, mostOfOne = 3400, 200, 50
	cmd := exec.CommandContext(t.Context(), binary(t))
	cmd.Env = []string{"CNI_COMMAND=VERSION", "GODEBUG=inittrace=1"}
	var trace bytes.Buffer
	cmd.Stderr = &trace
	require.NoError(t, cmd.Run())
	all, ours, packages := 0, 0, 0
	for line := range strings.Lines(trace.String()) {
		// init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "init "), " @")
		if !ok {
			continue
		}
		fields := strings.Split(rest, ", ")
		var allocs int
		_, err := fmt.Sscanf(fields[len(fields)-1], "%d allocs", &allocs)
		require.NoError(t, err, line)
		packages++
		all += allocs
		if strings.HasPrefix(name, "github.com/meshcni/meshcni/") {
			ours += allocs
			assert.LessOrEqual(t, allocs, mostOfOne, name)
		}
	}
	require.Greater(t, packages, 100, "the trace names all packages that have an initialiser: %s", &trace)
	assert.LessOrEqual(t, all, most, "allocations of all")
	assert.LessOrEqual(t, ours, mostOfOurs, "allocations of our own packages")
}

// TestLinked: the program has no second reader of YAML and no second client of netlink, which brought initialisers and half a megabyte, and nothing of
// protobuf's library, which reads pieces of the program's file at each start.
func TestLinked(t *testing.T) {
	text, err := os.ReadFile(binary(t))
	require.NoError(t, err)
	for _, path := range []string{"go.yaml.in/yaml/v3.", "github.com/vishvananda/netlink.", "google.golang.org/protobuf"} {
		assert.False(t, bytes.Contains(text, []byte(path)), path)
	}
	assert.True(t, bytes.Contains(text, []byte("go.yaml.in/yaml/v2.")), "names of functions are in the program")
}
