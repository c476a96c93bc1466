package attachment_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec"
)

// TestTidy: where DEL never comes, records of namespaces that are gone do not pile up for ever. The others stay, whatever
// may be wrong with their namespaces.
func TestTidy(t *testing.T) {
	t.Parallel()
	store := attachment.Open(t.TempDir())
	write := func(container, netns string) {
		id := attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}
		require.NoError(t, store.Write(attachment.Record{ID: id, NetNS: attachment.NetNS{Path: netns}}))
		require.NoError(t, store.Tidy(id))
	}
	write("kept", "/proc/self/ns/net") // one that is there
	if os.Geteuid() == 0 {             // one of which the record does not say which it was
		ns, err := netnsexec.New()
		require.NoError(t, err)
		defer func() { require.NoError(t, ns.Close()) }()
		write("unknown", fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
		defer func() {
			assert.True(t, slices.Contains(ls(t, store), "k8s@unknown@eth0.json"), "nobody can tell that it is another")
		}()
	}
	const runs, bound = 3000, 1200
	for i := range runs {
		write(fmt.Sprint(i), "/var/run/netns/gone-"+fmt.Sprint(i))
	}
	left := ls(t, store)
	assert.Less(t, len(left), bound)
	assert.Contains(t, left, "k8s@kept@eth0.json")
	assert.Contains(t, left, fmt.Sprintf("k8s@%d@eth0.json", runs-1))
}

// TestTidyIsRare: few ADDs pay for a look into the directory, which here is none.
func TestTidyIsRare(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	looks := 0
	for i := range 1000 {
		if (attachment.Store{Dir: file}).Tidy(attachment.ID{Network: "k8s", ContainerID: fmt.Sprint(i), IfName: "eth0"}) != nil {
			looks++
		}
	}
	assert.Positive(t, looks)
	assert.Less(t, looks, 40)
}
