package netnsstore_test

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// full is the kubelet's default limit of pods on a node.
const full = 110

// crowd is a full node's pods.
func crowd(t testing.TB) (pods []netnsstore.Pod, namespaces []*netnsexec.NetNS) {
	for i := range full {
		a := netip.AddrFrom4([4]byte{10, 244, 7, byte(i + 1)})
		pods = append(pods, netnsstore.Pod{UID: newUID(), Addrs: []netip.Addr{a}})
		namespaces = append(namespaces, newPodNS(t, a))
	}
	return pods, namespaces
}

func nsDescriptors(t testing.TB) (n int) {
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range files {
		var st unix.Statfs_t
		if unix.Statfs("/proc/self/fd/"+f.Name(), &st) == nil && st.Type == unix.NSFS_MAGIC {
			n++
		}
	}
	return n
}

// TestFullNodeAtOnce: all that happens to a store, to a full node's pods at the same time, several times. It is not parallel,
// because it counts what the whole process has open.
func TestFullNodeAtOnce(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	pods, namespaces := crowd(t)
	o := netnsstore.Options{RunDir: t.TempDir()}
	s := newStore(t, o)
	runtime.GC()
	open, before := nsDescriptors(t), heap()
	for range 3 {
		var g errgroup.Group
		for i, p := range pods {
			a := attach(p.UID, p.Addrs...)
			g.Go(func() error {
				ref, err := s.Put(a, namespaces[i])
				if err != nil {
					return err
				}
				defer func() { _ = ref.Close() }()
				if ref.ID() != namespaces[i].ID() {
					return fmt.Errorf("%s has %s", p.UID, ref.ID())
				}
				if i%3 == 0 {
					return s.Forget(a.UID)
				}
				return nil
			})
			g.Go(func() error {
				if i%4 != 0 { // each may search all processes
					return nil
				}
				other := (i + 1) % full
				ref, err := s.Find(t.Context(), pods[other])
				if err == nil && ref.ID() != namespaces[other].ID() {
					return fmt.Errorf("%s found %s", pods[other].UID, ref.ID())
				}
				if err == nil {
					_ = ref.Close()
				}
				return nil
			})
			g.Go(func() error {
				if i%30 == 0 {
					s.StillThere(t.Context(), pods...)
				}
				if i%5 == 0 {
					return s.Forget(p.UID)
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		held := map[types.UID]netnsexec.ID{}
		for i, p := range pods {
			if ref := s.Get(p.UID); ref != nil {
				held[p.UID] = namespaces[i].ID()
				require.NoError(t, ref.Close())
			}
		}
		assert.Equal(t, held, entries(t, o.RunDir), "the journal agrees, whoever came last")
		assert.Equal(t, len(held), nsDescriptors(t)-open)
		require.NoError(t, s.Journal())
		require.NoError(t, s.Retain(func(types.UID) bool { return false }))
		assert.Empty(t, entries(t, o.RunDir))
		assert.Zero(t, mountsBelow(t, o.RunDir))
		assert.Equal(t, open, nsDescriptors(t))
	}
	runtime.GC()
	assert.Less(t, int64(heap())-int64(before), int64(1<<20), "bytes that are still in use")
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestRestartOnAFullNode: the next start finds all pods in the journal, or by their processes, and opens nothing twice.
func TestRestartOnAFullNode(t *testing.T) {
	netnstest.Require(t, netnstest.Root, podproctest.Cgroups)
	pods, namespaces := crowd(t)
	o := netnsstore.Options{RunDir: t.TempDir()}
	first := newStore(t, o)
	for i, p := range pods[:full-10] {
		put(t, first, attach(p.UID, p.Addrs...), namespaces[i])
	}
	for i, p := range pods[full-10:] {
		podproctest.Start(t, namespaces[full-10+i], podproctest.Plain("kubepods/pod%s/5ad0d8f4", string(p.UID)))
	}
	open := nsDescriptors(t)
	second := newStore(t, o)
	for range 2 {
		found := second.FindAll(t.Context(), pods...)
		require.Len(t, found, full)
		for i, p := range pods {
			require.NoError(t, found[p.UID].Err)
			assert.Equal(t, namespaces[i].ID(), found[p.UID].Ref.ID())
			require.NoError(t, found[p.UID].Ref.Close())
		}
		assert.Equal(t, full, nsDescriptors(t)-open)
		assert.Len(t, entries(t, o.RunDir), full)
	}
	for uid, err := range second.StillThere(t.Context(), pods...) {
		assert.NoError(t, err, uid)
	}
}

func BenchmarkFullNode(b *testing.B) {
	netnstest.Require(b, netnstest.Root)
	pods, namespaces := crowd(b)
	o := netnsstore.Options{RunDir: b.TempDir()}
	s := newStore(b, o)
	b.Run("Put", func(b *testing.B) {
		for b.Loop() {
			for i, p := range pods {
				ref, err := s.Put(attach(p.UID, p.Addrs...), namespaces[i])
				require.NoError(b, err)
				require.NoError(b, ref.Close())
			}
			b.StopTimer()
			require.NoError(b, s.Retain(func(types.UID) bool { return false }))
			b.StartTimer()
		}
	})
	for i, p := range pods {
		put(b, s, attach(p.UID, p.Addrs...), namespaces[i])
	}
	b.Run("StillThere", func(b *testing.B) {
		for b.Loop() {
			s.StillThere(b.Context(), pods...)
		}
	})
	b.Run("Find", func(b *testing.B) {
		for b.Loop() {
			for _, f := range s.FindAll(b.Context(), pods...) {
				require.NoError(b, f.Err)
				require.NoError(b, f.Ref.Close())
			}
		}
	})
	b.Run("Restart", func(b *testing.B) {
		for b.Loop() {
			next := netnsstore.New(o)
			for _, f := range next.FindAll(b.Context(), pods...) {
				require.NoError(b, f.Err)
				require.NoError(b, f.Ref.Close())
			}
			require.NoError(b, next.Close())
		}
	})
}
