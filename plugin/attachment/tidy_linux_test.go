package attachment_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin/attachment"
)

// TestTidy: where DEL never comes, records of namespaces that are gone do not pile up for ever. The others stay, whatever
// may be wrong with their namespaces.
func TestTidy(t *testing.T) {
	t.Parallel()
	store := attachment.In(t.TempDir())
	write := func(container, netns string) {
		require.NoError(t, store.Write(attachment.Record{
			ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}, NetNS: attachment.NetNS{Path: netns},
		}))
		require.NoError(t, store.Tidy())
	}
	write("kept", "/proc/self/ns/net") // one that is there
	const runs, bound = 3000, 1200
	for i := range runs {
		write(fmt.Sprint(i), "/var/run/netns/gone-"+fmt.Sprint(i))
	}
	left := ls(t, store)
	assert.Less(t, len(left), bound)
	assert.Contains(t, left, "k8s@kept@eth0.json")
	assert.Contains(t, left, fmt.Sprintf("k8s@%d@eth0.json", runs-1))
}
