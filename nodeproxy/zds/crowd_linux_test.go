package zds_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"

	"github.com/meshcni/meshcni/internal/testing/socktest"
)

// TestSilent: of connections that say nothing few are held, whatever came before a proxy that says hello.
func TestSilent(t *testing.T) {
	path := socktest.Path(t)
	var log proctest.Buffer
	a := start(t, func(o *zds.Options) {
		o.Path, o.AckTimeout, o.Log = path, time.Hour, slog.New(slog.NewTextHandler(&log, nil))
	})
	const many = 300
	var open sync.WaitGroup
	closed := make(chan int, many)
	conns := make([]*net.UnixConn, many)
	for i := range many {
		var conn *net.UnixConn
		waittest.Eventually(t, "there is room for one more that waits", func() (err error) {
			conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
			return err
		})
		conns[i] = conn
		open.Go(func() {
			_, _ = conn.Read(make([]byte, 1)) // until either end closes it
			closed <- i
		})
	}
	for range many - 16 {
		await(t, closed)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	open.Wait()
	assert.Empty(t, a.Proxies())
	lines := bytes.Count([]byte(log.String()), []byte("\n"))
	assert.LessOrEqual(t, lines, 64, "of %d connections", many)
	assert.Positive(t, lines)
	assert.NotContains(t, strings.ToLower(log.String()), "panic")
}

// TestFlood: whoever connects, by however many groups, and says hello and goes, is accepted, served and heard of at the socket's pace. Of
// those that nobody accepts few wait.
func TestFlood(t *testing.T) {
	var snapshots, changes, group atomic.Int32
	a := start(t, func(o *zds.Options) {
		take := o.Snapshot
		o.Snapshot = func(ctx context.Context) ([]nodeproxy.Workload, error) { snapshots.Add(1); return take(ctx) }
		o.OnChange = func() { changes.Add(1) }
		o.GroupBy(func() string { return fmt.Sprint(group.Load() / 50) })
	})
	begin, refused := time.Now(), 0
	for range 3000 {
		c, err := zds.Dial(t.Context(), a.path)
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			refused++
			continue
		}
		group.Add(1)
		require.NoError(t, c.Close())
	}
	a.stop()
	spent := time.Since(begin)
	t.Log(group.Load(), "connections,", refused, "refused,", snapshots.Load(), "served,", changes.Load(), "changes in", spent)
	assert.LessOrEqual(t, int(snapshots.Load()), zds.AcceptBurst+int(spent/zds.AcceptEvery)+zds.Backlog)
	assert.LessOrEqual(t, int(changes.Load()), zds.ChangeBurst+int(spent/zds.ChangeEvery)+1)
	assert.Positive(t, refused)

	path := socktest.Path(t)
	_, err := zds.Listen(t.Context(), zds.Options{Path: path, Snapshot: func(context.Context) ([]nodeproxy.Workload, error) { return nil, nil }})
	require.NoError(t, err)
	for held := 0; ; held++ {
		require.Less(t, held, 20)
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			break
		}
		defer func() { _ = conn.Close() }()
	}
}

// grouped is an agent whose connections count for the group that the test names.
type grouped struct {
	*agent
	group atomic.Value
}

func startGrouped(t *testing.T) *grouped {
	t.Helper()
	g := &grouped{}
	g.agent = start(t, func(o *zds.Options) { o.GroupBy(func() string { return g.group.Load().(string) }) })
	return g
}

// served connects proxies of a group one after another, each of which is told the snapshot.
func (g *grouped) served(t *testing.T, group string, n int, uids ...string) (all []*client) {
	t.Helper()
	g.group.Store(group)
	for range n {
		all = append(all, g.connected(t, uids...))
	}
	return all
}

// turnedAway connects one more of a group, which is not served and changes nothing.
func (g *grouped) turnedAway(t *testing.T, group string) {
	t.Helper()
	g.group.Store(group)
	turnedAway(t, g.agent)
}

func turnedAway(t *testing.T, a *agent) {
	t.Helper()
	before := a.Proxies()
	r, _, err := a.connect(t).Receive()
	require.Error(t, err, "it is served: %s", r)
	require.Equal(t, before, a.Proxies())
}

// stay is that these proxies, and no others, are served.
func (g *grouped) stay(t *testing.T, all ...*client) {
	t.Helper()
	require.Len(t, g.Proxies(), len(all))
	removed := g.removing(t.Context(), "gone")
	for _, c := range all {
		c.expect("Del gone")
		c.ack(nil)
	}
	require.NoError(t, await(t, removed))
}

// TestCrowd: a group that holds all connections keeps no proxy of another out, and drops none.
func TestCrowd(t *testing.T) {
	g := startGrouped(t)
	crowd := g.served(t, "crowd", 16)
	g.turnedAway(t, "crowd")

	g.holding(pod(t, "a"))
	old := g.served(t, "old", 1, "a")
	crowd[0].ended()
	for range 20 {
		g.turnedAway(t, "crowd")
	}
	next := g.served(t, "next", 2, "a") // an exchange, of which one connects again
	crowd[1].ended()
	crowd[2].ended()
	g.turnedAway(t, "crowd")
	g.stay(t, append(append(crowd[3:], old...), next...)...)

	added := g.adding(t.Context(), pod(t, "b"))
	next[1].expect("Add b")
	next[1].ack(nil)
	require.NoError(t, await(t, added))
}

// TestExchangeIsNoCrowd: where no group has more than two connections, none loses one.
func TestExchangeIsNoCrowd(t *testing.T) {
	g := startGrouped(t)
	var all []*client
	for i := range 8 {
		all = append(all, g.served(t, fmt.Sprint(i), 2)...)
	}
	for _, group := range []string{"0", "7", "another"} {
		g.turnedAway(t, group)
	}
	g.stay(t, all...)
}

// TestEvenCrowds: two groups don't drop each other's connections in turns.
func TestEvenCrowds(t *testing.T) {
	g := startGrouped(t)
	all := append(g.served(t, "a", 8), g.served(t, "b", 8)...)
	g.turnedAway(t, "a")
	g.turnedAway(t, "b")
	one := g.served(t, "c", 1)
	all[0].ended()
	g.turnedAway(t, "a")
	g.turnedAway(t, "b")
	g.stay(t, append(all[1:], one...)...)
}

// TestCrowdOfProcesses: a process and its forks count as one, by the control group that the kernel has of them.
func TestCrowdOfProcesses(t *testing.T) {
	a := start(t, nil)
	for range 4 {
		fork := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // ourselves
		fork.Env = append(os.Environ(), crowdOn+"="+a.path)
		fork.Stderr = t.Output()
		require.NoError(t, fork.Start())
		defer func() {
			_ = fork.Process.Kill()
			_ = fork.Wait()
			assert.Equal(t, "ended", zds.GroupOf(int32(fork.Process.Pid)))
		}()
		require.Equal(t, zds.GroupOf(int32(os.Getpid())), zds.GroupOf(int32(fork.Process.Pid)))
	}
	require.Eventually(t, func() bool { return len(a.Proxies()) == 16 }, patience, time.Millisecond)
	a.settled(t)
	turnedAway(t, a) // by the process ID alone it would have been served
	assert.NotEqual(t, zds.GroupOf(0), zds.GroupOf(int32(os.Getpid())))
}

// TestCrowdOfPods: a proxy's pod is one group, whatever groups its processes make below its own.
func TestCrowdOfPods(t *testing.T) {
	t.Parallel()
	proxy, other := podproctest.NewUID(), podproctest.NewUID()
	group := func(format, uid string) string {
		return zds.GroupOf(int32(podproctest.Start(t, nil, podproctest.Plain(format, uid)).Pid))
	}
	first := group("kubepods/burstable/pod%s/5ad0d8f4", proxy)
	assert.Equal(t, first, group("kubepods/burstable/pod%s/5ad0d8f4/fork", proxy))
	assert.Equal(t, first, group("kubepods/burstable/pod%s/5ad0d8f4/pod"+other, proxy))
	assert.NotEqual(t, first, group("kubepods/burstable/pod%s/5ad0d8f4", other))
}

// crowdOn names the socket to which a process of TestCrowdOfProcesses connects.
const crowdOn = "MESHCNI_TEST_CROWD_ON"

// beCrowd connects four proxies, which accept all, and ends with the process.
func beCrowd(path string) {
	var all sync.WaitGroup
	for range 4 {
		c, err := zds.Dial(context.Background(), path)
		if err != nil {
			panic(err)
		}
		all.Go(func() {
			for {
				if _, _, err := c.Receive(); err != nil {
					return
				}
				_ = c.Ack(nil)
			}
		})
	}
	all.Wait()
}
