package zds_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

func (a *agent) waiting(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool { p := a.Proxies(); return len(p) > 0 && p[len(p)-1].Waiting == n }, patience, time.Millisecond)
}

// While a snapshot is on its way, pods come and go. The proxy is told nothing that is no longer true, and nothing that it
// does not expect.
func TestSnapshotAndChanges(t *testing.T) {
	a := start(t, nil)
	a.holding(pod(t, "a"), pod(t, "b"), kept(pod(t, "c")), pod(t, "d"), pod(t, "e"))
	c := a.connect(t)
	c.expect("Add a")
	a.waiting(t, 5)
	for _, uid := range []types.UID{"b", "c", "a", "e"} {
		a.removeLater(t, uid)
	}
	a.waiting(t, 6)                         // of all but a the Add is out and the Del is in
	d := a.adding(t.Context(), pod(t, "d")) // in the place of the snapshot's
	added := a.adding(t.Context(), pod(t, "new"))
	a.waiting(t, 7)
	e := a.adding(t.Context(), pod(t, "e"))
	a.waiting(t, 8)
	c.ack(nil)

	got := []string{}
	for len(got) < 8 {
		r, file, err := c.Receive()
		require.NoError(t, err)
		if file != nil {
			_ = file.Close()
		}
		got = append(got, r.String())
		c.ack(nil)
	}
	assert.Equal(t, []string{"Add d", "SnapshotSent", "Del b", "Del c", "Del a", "Del e"}, got[:6])
	assert.ElementsMatch(t, []string{"Add new", "Add e"}, got[6:])
	for _, c := range []<-chan error{d, added, e} {
		require.NoError(t, await(t, c))
	}
}

// removeLater has the Del queued when it returns, and does not wait for the answer.
func (a *agent) removeLater(t testing.TB, uid types.UID) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, a.Remove(ctx, uid), context.Canceled)
}

// What changes while the snapshot is being taken counts, whether the snapshot has it or not.
func TestChangesWhileTheSnapshotIsTaken(t *testing.T) {
	a := start(t, nil)
	taking, take := make(chan struct{}), make(chan struct{})
	old := []nodeproxy.Workload{pod(t, "stays"), pod(t, "goes"), pod(t, "again"), pod(t, "twice")}
	a.snapshots(func(context.Context) ([]nodeproxy.Workload, error) {
		close(taking)
		<-take
		return append(old, old[0]), nil
	})
	c := a.connect(t)
	await(t, taking)
	goes := a.removing(t.Context(), "goes")
	a.waiting(t, 1)
	again := a.removing(t.Context(), "again")
	a.waiting(t, 2)
	againAdded := a.adding(t.Context(), pod(t, "again"))
	a.waiting(t, 3)
	twice := a.adding(t.Context(), pod(t, "twice"))
	a.waiting(t, 4)
	lost := a.adding(t.Context(), pod(t, "lost"))
	a.waiting(t, 5)
	lostRemoved := a.removing(t.Context(), "lost")
	require.ErrorIs(t, await(t, lost), zds.ErrRemoved)
	close(take)
	for _, want := range []string{"Add stays", "Add twice", "SnapshotSent", "Del goes", "Del again", "Add again", "Del lost"} {
		c.expect(want)
		c.ack(nil)
	}
	for _, c := range []<-chan error{goes, again, againAdded, twice, lostRemoved} {
		require.NoError(t, await(t, c))
	}
}

// The proxy that is left is not handed what was taken back while its share was looked up.
func TestInheritance(t *testing.T) {
	a := start(t, nil)
	a.holding(pod(t, "a"))
	old, newer := a.connected(t, "a"), a.connected(t, "a")

	taking, take := make(chan struct{}), make(chan struct{})
	a.snapshots(func(context.Context) ([]nodeproxy.Workload, error) {
		close(taking)
		<-take
		return []nodeproxy.Workload{pod(t, "a"), pod(t, "b"), kept(pod(t, "c")), pod(t, "d")}, nil
	})
	require.NoError(t, newer.Close())
	await(t, taking)
	removed := a.removing(t.Context(), "b")
	old.expect("Del b")
	old.ack(nil)
	require.NoError(t, await(t, removed))
	close(take)
	old.expect("Add a") // its namespace is another
	old.ack(nil)
	old.expect("Add d")
	old.ack(nil)
	a.settled(t)
}

// A proxy that connects while a pod is handed to another gets it too, even if its snapshot came too early to have it.
func TestAddAndANewProxy(t *testing.T) {
	a := start(t, nil)
	old := a.connected(t)
	for _, refusal := range []error{nil, errors.New("no")} {
		added := a.adding(t.Context(), pod(t, "a"))
		old.expect("Add a")
		newer := a.connect(t)
		newer.expect("SnapshotSent")
		newer.ack(nil)
		old.ack(nil)
		newer.expect("Add a")
		newer.ack(refusal)
		if refusal == nil {
			require.NoError(t, await(t, added))
			require.NoError(t, newer.Close())
			removed := a.removing(t.Context(), "a")
			old.expect("Del a")
			old.ack(nil)
			require.NoError(t, await(t, removed))
			require.Eventually(t, func() bool { return len(a.Proxies()) == 1 }, patience, time.Millisecond)
			continue
		}
		require.Error(t, await(t, added))
		for _, c := range []*client{old, newer} { // nobody has it after an error
			c.expect("Del a")
			c.ack(nil)
		}
	}
}

// Who adds a pod of the snapshot and stops waiting takes nothing from the snapshot: without the pod's name in it, the proxy
// would cut the pod off.
func TestAddOfTheSnapshotGivenUp(t *testing.T) {
	a := start(t, nil)
	taking, take := make(chan struct{}), make(chan struct{})
	a.snapshots(func(context.Context) ([]nodeproxy.Workload, error) {
		close(taking)
		<-take
		return []nodeproxy.Workload{pod(t, "a"), pod(t, "b"), pod(t, "c"), kept(pod(t, "d"))}, nil
	})
	c := a.connect(t)
	await(t, taking)
	giveUp := func(uid string, sent func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		added := a.adding(ctx, pod(t, uid))
		sent()
		cancel()
		require.ErrorIs(t, await(t, added), context.Canceled)
	}
	early, cancel := context.WithCancel(t.Context())
	added := a.adding(early, pod(t, "b"))
	a.waiting(t, 1)
	close(take)
	c.expect("Add a")
	cancel()
	require.ErrorIs(t, await(t, added), context.Canceled)
	closed := pod(t, "c")
	require.NoError(t, closed.NetNS.(*os.File).Close())
	unsent := a.adding(t.Context(), closed)
	c.ack(nil)
	c.expect("Add b")
	c.ack(nil)
	c.expect("Add c")
	c.ack(nil)
	c.expect("Keep d")
	c.ack(nil)
	c.expect("SnapshotSent")
	c.ack(nil)
	require.ErrorIs(t, await(t, unsent), os.ErrClosed)
	// Of a pod that was kept nobody knows the namespace, so giving up costs it nothing either.
	giveUp("d", func() { c.expect("Add d") })
	c.ack(nil)
	removed := a.removing(t.Context(), "x")
	c.expect("Del x")
	c.ack(nil)
	require.NoError(t, await(t, removed))
}

// What the proxy has acknowledged is not sent again to it, also if that was asked for before the answer came.
func TestAddOnItsWay(t *testing.T) {
	a := start(t, nil)
	cart := pod(t, "cart")
	a.holding(cart)
	id := func() netnsexec.ID {
		info, err := cart.NetNS.(*os.File).Stat()
		require.NoError(t, err)
		st := info.Sys().(*syscall.Stat_t)
		return netnsexec.ID{Dev: uint64(st.Dev), Ino: st.Ino} //nolint:unconvert // the types differ between architectures
	}()
	c := a.connect(t)
	c.expect("Add cart")
	assert.False(t, a.Accepted("cart", id))
	added := a.adding(t.Context(), cart)
	a.waiting(t, 2)
	c.ack(nil)
	c.expect("SnapshotSent")
	c.ack(nil)
	require.NoError(t, await(t, added))
	assert.True(t, a.Accepted("cart", id))
	assert.False(t, a.Accepted("cart", netnsexec.ID{}))
	assert.False(t, a.Accepted("other", id))

	added = a.adding(t.Context(), cart)
	c.expect("Add cart") // whoever asks later has a reason
	other := a.adding(t.Context(), pod(t, "cart"))
	a.waiting(t, 1)
	c.ack(nil)
	require.NoError(t, await(t, added))
	c.expect("Add cart") // in another namespace
	c.ack(nil)
	require.NoError(t, await(t, other))
	removed := a.removing(t.Context(), "cart")
	c.expect("Del cart")
	c.ack(nil)
	require.NoError(t, await(t, removed))
	assert.False(t, a.Accepted("cart", id))

	added = a.adding(t.Context(), cart)
	c.expect("Add cart")
	again := a.adding(t.Context(), cart)
	a.waiting(t, 1)
	c.ack(errors.New("no"))
	require.Error(t, await(t, added))
	c.expect("Add cart") // what was refused is no answer to it
	c.ack(nil)
	require.NoError(t, await(t, again))
}
