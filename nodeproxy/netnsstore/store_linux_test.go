package netnsstore_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/podnetns/podproctest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy/netnsstore"
	"github.com/meshcni/meshcni/plugin/attachment"
)

var podAddrs = []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}

func newUID() types.UID { return types.UID(podproctest.NewUID()) }

// newStore returns a store whose journal's mounts are gone when the test ends.
func newStore(t testing.TB, o netnsstore.Options) *netnsstore.Store {
	t.Helper()
	s := netnsstore.New(o)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, netnsstore.RemoveJournal(o))
	})
	return s
}

func attach(uid types.UID, container string, addrs ...netip.Addr) netnsstore.Attachment {
	return netnsstore.Attachment{ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}, UID: uid, Addrs: addrs}
}

func put(t testing.TB, s *netnsstore.Store, a netnsstore.Attachment, ns *netnsexec.NetNS) *netnsstore.Ref {
	t.Helper()
	ref, err := s.Put(a, ns)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ref.Close()) })
	return ref
}

func TestJournalServesTheNextStore(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	w := netnstest.NewWorld(t, netnstest.Options{})
	uid := newUID()
	first := newStore(t, o)
	put(t, first, attach(uid, "c1", podAddrs...), w.Pod)
	require.NoError(t, first.Journal())
	require.NoError(t, first.Close())

	second := newStore(t, o)
	assert.Nil(t, second.Get(uid), "nothing is proven yet")
	ref, err := second.Find(netnsstore.Pod{UID: uid, Addrs: podAddrs})
	require.NoError(t, err)
	assert.Equal(t, w.Pod.ID(), ref.ID())
	assert.Equal(t, netnsstore.Journal, ref.Source())
	require.NoError(t, ref.Close())
	require.NoError(t, second.Forget(uid))
	entries, err := os.ReadDir(filepath.Join(o.RunDir, "netns"))
	require.NoError(t, err)
	assert.Empty(t, entries)
}
