package conntables_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/conntables"
	"github.com/meshcni/meshcni/internal/kernel/conntrack/conntracktest"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

const limitFile = "/proc/sys/net/netfilter/nf_conntrack_max"

func number(t testing.TB, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return n
}

// running starts a process of a pod in the namespace.
func running(t testing.TB, ns *netnsexec.NetNS, name string) status.ID {
	t.Helper()
	uid := podproctest.NewUID()
	podproctest.Start(t, ns, podproctest.Plain("kubepods/besteffort/pod%s/c", uid))
	return status.ID{Namespace: "shop", Name: name, UID: uid}
}

// redirected has the pod's connections go to the proxy.
func redirected(t testing.TB, ns *netnsexec.NetNS) {
	t.Helper()
	b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendNftables, Runner: ns.Sandbox()})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), redirect.Default().MustRuleset())
	require.NoError(t, err)
}

// writable reports whether the limit can be set in this thread's network namespace.
func writable(t testing.TB) bool {
	t.Helper()
	info, err := os.Stat(limitFile)
	require.NoError(t, err)
	return info.Mode()&0o200 != 0
}

// begin begins a connection, and returns its socket.
func begin(t testing.TB, ns *netnsexec.NetNS, to netip.AddrPort) (fd int) {
	t.Helper()
	fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); !errors.Is(err, unix.EINPROGRESS) {
		require.NoError(t, err)
	}
	return fd
}

// connected reports whether a connection that was begun is made.
func connected(fd int) bool {
	_, err := unix.Getpeername(fd)
	return err == nil
}

// TestFull fills the table of a pod under REDIRECT: new connections stall, both ways, and no other namespace's do; readings and
// metrics say so. They go on once there is room, or the limit is raised.
func TestFull(t *testing.T) { //nolint:paralleltest // it raises the machine's limit for a moment
	w := netnstest.NewWorld(t, netnstest.Options{})
	other := netnstest.NewWorld(t, netnstest.Options{})
	redirected(t, w.Pod)
	redirected(t, other.Pod)
	pods := []status.ID{running(t, other.Pod, "other"), running(t, w.Pod, "cart")}
	o := conntables.Options{Pods: func() []status.ID { return pods }}
	tables, asked := conntables.New(o), conntables.New(o).Netlink()

	out := netip.MustParseAddrPort("10.96.5.5:80")
	require.Equal(t, "proxy:15001", through(t, w.Pod, out))
	before := tables.Read()
	require.NoError(t, before.Err)
	require.Equal(t, asked.Read(), before, "the file and netlink agree")
	require.Empty(t, before.Nearly())
	limit := number(t, limitFile)
	require.Equal(t, limit, before.Limit)

	conntracktest.Fill(t, w.Pod, limit+limit/10)
	full := tables.Read()
	require.Len(t, full.Nearly(), 1)
	cart := full.Nearly()[0]
	assert.Equal(t, pods[1], cart.Pod)
	assert.GreaterOrEqual(t, cart.Entries, limit, "all there are")
	assert.GreaterOrEqual(t, cart.Percent(), 100)

	stalled := begin(t, w.Pod, out)
	app := begin(t, w.Out, netip.MustParseAddrPort("10.244.1.5:80"))
	now := tables.Read()
	assert.Greater(t, now.Tables[0].Dropped, full.Tables[0].Dropped+1, "both first packets")
	assert.Equal(t, "proxy:15001", through(t, other.Pod, out), "each namespace has a table of its own")
	assert.False(t, connected(stalled) || connected(app))
	assert.Equal(t, now.Tables[0].Entries, asked.Read().Tables[0].Entries)
	assert.GreaterOrEqual(t, asked.Read().Tables[0].Dropped, now.Tables[0].Dropped)

	require.NoError(t, w.Pod.Do(func() error {
		assert.False(t, writable(t), "a pod cannot raise it")
		assert.Equal(t, limit, number(t, limitFile))
		return nil
	}))
	if writable(t) { // in the machine's first network namespace, where tests usually run
		t.Run("the limit is raised", func(t *testing.T) {
			set := func(n int) { require.NoError(t, os.WriteFile(limitFile, []byte(fmt.Sprint(n)), 0)) }
			set(limit + 1<<10)
			t.Cleanup(func() { set(limit) })
			assert.Equal(t, limit+1<<10, tables.Read().Limit)
			assert.Equal(t, "proxy:15001", through(t, w.Pod, out))
		})
	}
	t.Run("there is room", func(t *testing.T) {
		require.NoError(t, w.Pod.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
		assert.Equal(t, "proxy:15001", through(t, w.Pod, out))
		// What stalled begins again by itself, since a first packet that is not answered is sent again.
		require.NoError(t, proctest.Poll(netnstest.Patience, func() error {
			if !connected(stalled) || !connected(app) {
				return errors.New("not yet connected")
			}
			return nil
		}))
		assert.Empty(t, tables.Read().Nearly())
	})
}

// TestUnanswered: what the kernel does not say is not zero entries.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	require.NoError(t, netnstest.New(t).Do(func() error {
		_, err := conntables.Ask(conntables.GlobalEntries)
		require.NoError(t, err)
		_, err = conntables.Ask(conntables.GlobalEntries + 100)
		require.ErrorContains(t, err, "another form: no entries")
		return nil
	}))
}

// through makes a connection, and returns who answered.
func through(t testing.TB, ns *netnsexec.NetNS, to netip.AddrPort) string {
	t.Helper()
	var conn net.Conn
	require.NoError(t, ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), netnstest.Patience)
		return err
	}))
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(netnstest.Patience)))
	said, err := io.ReadAll(conn)
	require.NoError(t, err)
	who, _, _ := strings.Cut(string(said), " ")
	return who
}

// BenchmarkRead is one look at the tables of a full node, whose pods are processes of their own.
//
//	go test ./internal/kernel/conntables -run '^$' -bench Read
func BenchmarkRead(b *testing.B) {
	netnstest.Require(b, netnstest.Root, podproctest.Cgroups)
	var pods []status.ID
	for i := range 110 {
		ns := netnstest.New(b)
		redirected(b, ns)
		pods = append(pods, running(b, ns, fmt.Sprint("pod-", i)))
	}
	o := conntables.Options{Pods: func() []status.ID { return pods }}
	for name, tables := range map[string]*conntables.Tables{"file": conntables.New(o), "netlink": conntables.New(o).Netlink()} {
		b.Run(name, func(b *testing.B) {
			require.Len(b, tables.Read().Tables, len(pods))
			for b.Loop() {
				tables.Read()
			}
		})
	}
	b.Run("search", func(b *testing.B) {
		for b.Loop() {
			require.Len(b, conntables.New(o).Read().Tables, len(pods))
		}
	})
}
