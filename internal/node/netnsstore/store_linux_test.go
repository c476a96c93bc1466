package netnsstore_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// How long the kernel may take for what it does in its own time, and how often to look.
const (
	patience = netnstest.Patience
	tick     = 2 * time.Millisecond
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

func attach(uid types.UID, addrs ...netip.Addr) netnsstore.Attachment {
	return netnsstore.Attachment{UID: uid, Addrs: addrs}
}

func put(t testing.TB, s *netnsstore.Store, a netnsstore.Attachment, ns *netnsexec.NetNS) *netnsstore.Ref {
	t.Helper()
	ref, err := s.Put(a, ns)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ref.Close()) })
	return ref
}

func TestPutRefuses(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	s := newStore(t, o)
	ns := newPodNS(t, addrA)
	taken := newUID()
	put(t, s, attach(taken, addrA), ns)
	file := func(path string) *os.File {
		f, err := os.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	closed := newPodNS(t, addrA)
	require.NoError(t, closed.Close())
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	for name, c := range map[string]struct {
		uid   types.UID
		addrs []netip.Addr
		file  syscall.Conn
		want  error
	}{
		"no address":            {newUID(), nil, ns, netnsstore.ErrNoAddress},
		"an address is missing": {newUID(), []netip.Addr{addrA, addrB}, ns, netnsstore.ErrAddress},
		"another pod's":         {newUID(), []netip.Addr{addrA}, ns, netnsstore.ErrForeign},
		"a path for a UID":      {"../../../../etc/passwd", []netip.Addr{addrA}, ns, netnsstore.ErrUID},
		"no UID":                {"", []netip.Addr{addrA}, ns, netnsstore.ErrUID},
		"the host's":            {newUID(), []netip.Addr{addrA}, file("/proc/self/ns/net"), netnsexec.ErrHost},
		"a plain file":          {newUID(), []netip.Addr{addrA}, file(plain), netnsexec.ErrNotNetNS},
		"another namespace":     {newUID(), []netip.Addr{addrA}, file("/proc/self/ns/mnt"), netnsexec.ErrNotNetNS},
		"closed":                {newUID(), []netip.Addr{addrA}, closed, os.ErrClosed},
	} {
		ref, err := s.Put(attach(c.uid, c.addrs...), c.file)
		require.ErrorIs(t, err, c.want, name)
		assert.Nil(t, ref, name)
		assert.Nil(t, s.Get(c.uid), name)
	}
	assert.Len(t, entries(t, o.RunDir), 1)
	require.NoError(t, os.WriteFile(filepath.Join(o.RunDir, "log.json"), nil, 0o600))
	require.NoError(t, s.Forget("../log"))
	assert.FileExists(t, filepath.Join(o.RunDir, "log.json"))
	require.NoError(t, s.Close())
	_, err := s.Put(attach(newUID(), addrA), ns)
	require.ErrorIs(t, err, os.ErrClosed)
}

// TestPutAgain: the same attachment, another of the pod, and another sandbox of it.
func TestPutAgain(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	s := newStore(t, o)
	uid, ns, next := newUID(), newPodNS(t, addrA, addrB), newPodNS(t, addrA)
	first := put(t, s, attach(uid, addrA), ns)
	again := put(t, s, attach(uid, addrA), ns)
	assert.Same(t, first.NetNS(), again.NetNS(), "the descriptor that is open stays")
	both := put(t, s, attach(uid, addrB), ns)
	assert.ElementsMatch(t, []netip.Addr{addrA, addrB}, both.Addrs())

	put(t, s, attach(uid, addrA), next)
	assert.Equal(t, map[types.UID]netnsexec.ID{uid: next.ID()}, entries(t, o.RunDir))
	assert.Equal(t, next.ID(), keep(t, s.Get(uid)).ID())
	assert.Equal(t, ns.ID(), first.ID())
	assert.NotEqual(t, -1, first.NetNS().Fd(), "and who has it, has it")
}

func keep(t testing.TB, r *netnsstore.Ref) *netnsstore.Ref {
	t.Helper()
	require.NotNil(t, r)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// TestLastCloseCloses: the descriptor is open exactly as long as somebody may use it.
func TestLastCloseCloses(t *testing.T) {
	t.Parallel()
	s := newStore(t, netnsstore.Options{RunDir: t.TempDir()})
	uid, ns := newUID(), newPodNS(t, addrA)
	ref, err := s.Put(attach(uid, addrA), ns)
	require.NoError(t, err)
	another := s.Get(uid)
	inner := ref.NetNS()
	require.NoError(t, s.Forget(uid))
	require.NoError(t, ref.Close())
	require.NoError(t, ref.Close())
	assert.NotEqual(t, -1, inner.Fd())
	raw, err := another.NetNS().SyscallConn()
	require.NoError(t, err)

	closing, closed := make(chan struct{}), make(chan error)
	require.NoError(t, raw.Control(func(fd uintptr) {
		go func() {
			close(closing)
			closed <- another.Close()
		}()
		<-closing
		select {
		case <-closed:
			t.Error("closed while it was in use")
		default:
		}
		_, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(fd)))
		assert.NoError(t, err)
	}))
	require.NoError(t, <-closed)
	assert.Equal(t, -1, inner.Fd())
	require.ErrorIs(t, raw.Control(func(uintptr) {}), os.ErrClosed)
}
