package nodecontrol_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

const application = "10.244.1.5:7779"

// controlPlane tells peers, some time after the annotation has changed, whether they are to use the tunnel to the pod.
type controlPlane struct {
	tunnel  atomic.Bool
	changes sync.WaitGroup
}

func (s *shop) controlPlane(delay time.Duration) *controlPlane {
	c := &controlPlane{}
	seen := ""
	var mu sync.Mutex
	cancel := s.pods.Subscribe(func(types.UID) {
		mu.Lock()
		defer mu.Unlock()
		if says := s.pods.annotation(s.uid); says != seen {
			seen = says
			c.changes.Add(1)
			time.AfterFunc(delay, func() {
				c.tunnel.Store(says == "enabled")
				c.changes.Done()
			})
		}
	})
	s.t.(*testing.T).Cleanup(func() {
		cancel()
		c.changes.Wait()
	})
	return c
}

// tunnelTo connects to an address of the pod as a peer of the mesh does.
func tunnelTo(from *netnsexec.NetNS, to string) (net.Conn, *bufio.Reader, error) {
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", "10.244.1.5:15008", limit)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	_ = c.SetDeadline(time.Now().Add(limit))
	_, err = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	reader := bufio.NewReader(c)
	if err == nil {
		var response *http.Response
		response, err = http.ReadResponse(reader, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // it is the tunnel
		if err == nil && response.StatusCode != http.StatusOK {
			err = errors.New(response.Status)
		}
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, reader, nil
}

// exchangeByTunnel makes a connection through the tunnel, says a word and hears it.
func exchangeByTunnel(from *netnsexec.NetNS, to string) error {
	c, reader, err := tunnelTo(from, to)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err = c.Write([]byte("x")); err == nil {
		_, err = io.ReadFull(reader, make([]byte, 1))
	}
	return err
}

// pool is a peer's one connection to the tunnel, for all that it sends.
type pool struct{ *http.Transport }

func (s *shop) pool() pool {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	p := pool{&http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (c net.Conn, err error) {
		err = s.world.Out.Do(func() (err error) {
			c, err = net.DialTimeout("tcp", "10.244.1.5:15008", limit)
			return err
		})
		return c, err
	}}}
	s.t.(*testing.T).Cleanup(p.CloseIdleConnections)
	return p
}

// exchange makes a connection through the tunnel, says a word and hears it.
func (p pool) exchange(to string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	body, word := io.Pipe()
	defer func() { _ = word.Close() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://"+to, body)
	if err != nil {
		return err
	}
	response, err := p.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	said := []byte(strings.Repeat("x", 64)) // what TLS adds to a byte
	if _, err = word.Write(said); err == nil {
		_, err = io.ReadFull(response.Body, said)
	}
	return err
}

// TestSlowControlPlane: peers that send by a connection which they keep, seldom or often, each time for a moment, are served until a slow
// control plane has told them. A look would see none of what they send. A connection on which nothing is sent does not keep the proxy. The
// long test makes 2,000 connections at each pace.
func TestSlowControlPlane(t *testing.T) {
	t.Parallel()
	for pause, leaves := range map[time.Duration]int{5 * time.Millisecond: 3, 400 * time.Millisecond: 165, 1300 * time.Millisecond: 510} {
		for range longtest.Rounds(1, leaves) {
			t.Run(pause.String(), func(t *testing.T) {
				t.Parallel()
				waittest.Eventually(t, "peers keep the pace", func() error { return slowControlPlane(t, pause) })
			})
		}
	}
}

// slowControlPlane is one leave. An error: this machine was too busy for the peers to keep the pace, so it says nothing.
func slowControlPlane(t *testing.T, pause time.Duration) error {
	s := newShop(t, newNode(t, ruleset.BackendNftables), 100*limit)
	peers := s.controlPlane(5 * time.Second)
	echo(t, s.world.Pod, application)
	s.join()
	s.until("peers use the tunnel", peers.tunnel.Load)
	idle, used := s.pool(), s.pool()
	require.NoError(t, idle.exchange(application))
	var early atomic.Bool
	told := s.dels(func() { early.Store(peers.tunnel.Load()) })
	require.NoError(t, used.exchange(application))
	began, slowest := time.Now(), time.Duration(0)
	s.leave()
	var lost []error
	made, ticks := 0, time.NewTicker(pause)
	defer ticks.Stop()
	for ; peers.tunnel.Load(); <-ticks.C {
		slowest, began = max(slowest, time.Since(began)), time.Now()
		if err := used.exchange(application); err != nil {
			lost = append(lost, err)
		}
		made++
	}
	slowest = max(slowest, time.Since(began))
	require.NoError(t, exchange(s.world.Out, application), "straight")
	wait(t, told, "nothing is carried")
	s.clean()
	if slowest > pause+time.Second {
		return fmt.Errorf("from one connection to the next it took %s; lost: %d of %d", slowest, len(lost), made)
	}
	t.Log(made, "connections by the tunnel after the annotation was gone")
	assert.Empty(t, lost, "of %d", made)
	assert.False(t, early.Load(), "peers still used the tunnel")
	return nil
}

// idle is a peer's connection to the tunnel that nothing uses, as those are which a proxy keeps for later.
func (s *shop) idle() {
	s.t.Helper()
	dial(s.t.(*testing.T), s.world.Out, "10.244.1.5:15008")
}

// dels returns what is closed when the proxy is told to let the pod go; before is called first.
func (s *shop) dels(before func()) <-chan struct{} {
	told := make(chan struct{})
	once := sync.OnceFunc(func() {
		before()
		close(told)
	})
	asked := func(r zds.Request) {
		if r.Kind == zds.Del && r.UID == string(s.uid) {
			once()
		}
	}
	s.asked.Store(&asked)
	return told
}

func wait(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(limit):
		require.Fail(t, what)
	}
}

// TestLeaveLosesNothing: over a leave, connections that peers make by the tunnel until they are told, and straight afterwards, and those
// that the pod makes, are all answered. What is open goes on. A peer's idle connection does not keep the proxy.
func TestLeaveLosesNothing(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		s := newShop(t, n, 100*limit)
		peers := s.controlPlane(time.Second)
		echo(t, s.world.Out, "10.96.5.5:7779")
		echo(t, s.world.Pod, application)
		servers := s.places(7777)
		stop := make(chan struct{})
		var all sync.WaitGroup
		var mu sync.Mutex
		var failed []string
		made := map[string]int{}
		stream := func(way func() (string, error)) {
			all.Go(func() {
				for pause := time.NewTicker(5 * time.Millisecond); ; <-pause.C {
					select {
					case <-stop:
						pause.Stop()
						return
					default:
					}
					name, err := way()
					mu.Lock()
					if made[name]++; err != nil {
						failed = append(failed, name+": "+err.Error())
					}
					mu.Unlock()
				}
			})
		}
		stream(func() (string, error) { return "from the pod", exchange(s.world.Pod, "10.96.5.5:7779") })
		stream(func() (string, error) { return "from a client", exchange(s.world.Out, application) })
		stream(func() (string, error) {
			if peers.tunnel.Load() {
				return "from a peer, by the tunnel", exchangeByTunnel(s.world.Out, application)
			}
			return "from a peer, straight", exchange(s.world.Out, application)
		})
		for range 2 {
			s.join()
			s.until("peers use the tunnel", peers.tunnel.Load)
			s.idle()
			carried := s.connect(servers)
			long, reader, err := tunnelTo(s.world.Out, application)
			require.NoError(t, err)
			told := s.dels(func() {
				assert.Empty(t, s.pods.annotation(s.uid))
				assert.False(t, peers.tunnel.Load(), "peers still use the tunnel")
			})
			s.leave()
			s.until("peers have heard", func() bool { return !peers.tunnel.Load() })
			s.goOn(carried, "left")
			_, err = long.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(reader, make([]byte, 1))
			require.NoError(t, err, "by the tunnel")
			s.end(carried)
			assert.True(t, s.has(), "it carries the peer's")
			assert.Contains(t, s.state(s.uid).Detail, "go on until they end, for at most")
			_ = long.Close()
			wait(t, told, "the idle connection does not carry anything")
			s.clean()
		}
		close(stop)
		all.Wait()
		assert.Empty(t, failed, "of %v", made)
		assert.Len(t, made, 4)
		t.Log(made)
	})
}

// patient is a context that says that it ends, and does not.
type patient struct {
	context.Context //nolint:containedctx // it is one

	until time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.until, true }

// TestHeldBack: how long the proxy keeps a pod that leaves.
func TestHeldBack(t *testing.T) {
	t.Parallel()
	// carrying is a captured pod with a connection that does not end by itself.
	carrying := func(t *testing.T, patience time.Duration) (*shop, []pair) {
		t.Helper()
		s := newShop(t, newNode(t, ruleset.BackendNftables), patience)
		servers := s.places(7777)
		s.join()
		return s, s.connect(servers)
	}
	t.Run("up to the bound", func(t *testing.T) {
		t.Parallel()
		const bound = 3 * time.Second
		s, pairs := carrying(t, bound)
		begin := time.Now()
		told := s.dels(func() { assert.Greater(t, time.Since(begin), bound) })
		s.leave()
		s.goOn(pairs, "left")
		wait(t, told, "the bound has passed")
		s.clean()
	})
	t.Run("for peers that have yet to hear", func(t *testing.T) {
		t.Parallel()
		s, pairs := carrying(t, 0)
		s.end(pairs)
		begin := time.Now()
		told := s.dels(func() { assert.Greater(t, time.Since(begin), 2*time.Second) })
		s.leave()
		wait(t, told, "nothing is carried")
		s.clean()
	})
	t.Run("no longer than the bound, if the annotation cannot be removed", func(t *testing.T) {
		t.Parallel()
		s, pairs := carrying(t, 3*time.Second)
		s.end(pairs)
		s.pods.mu.Lock()
		s.pods.fault = errFault
		s.pods.mu.Unlock()
		told := s.dels(func() {})
		s.pods.label("shop", "")
		s.eventually(s.uid, status.StateOutside, "status-failed")
		wait(t, told, "the bound has passed")
		s.pods.mu.Lock()
		s.pods.fault = nil
		s.pods.mu.Unlock()
		s.until("it is removed", func() bool { return s.pods.annotation(s.uid) == "" })
		s.clean()
	})
	t.Run("over a restart of the agent", func(t *testing.T) {
		t.Parallel()
		s, pairs := carrying(t, 100*limit)
		told := s.dels(func() {})
		s.leave()
		s.kill()
		s.goOn(pairs, "without an agent")
		s.start()
		s.eventually(s.uid, status.StateOutside, "not-enabled")
		workloads, err := s.c.Snapshot(t.Context())
		require.NoError(t, err)
		assert.Len(t, workloads, 1, "a proxy that connects keeps the pod")
		s.goOn(pairs, "another agent")
		assert.True(t, s.has())
		s.end(pairs)
		wait(t, told, "the next agent finishes the leave")
		s.clean()
	})
	t.Run("by a proxy that comes meanwhile", func(t *testing.T) {
		t.Parallel()
		s, pairs := carrying(t, 100*limit)
		s.leave()
		next := nodeproxytest.Start(t, nodeproxytest.Options{Socket: s.socket})
		s.until("it has the pod", func() bool { _, has := next.State().Pods[s.uid]; return has })
		s.goOn(pairs, "two proxies")
		s.end(pairs)
		s.clean()
		s.until("both have let it go", func() bool { return !s.has() && len(next.State().Pods) == 0 })
	})
	t.Run("not when it is deleted", func(t *testing.T) {
		t.Parallel()
		s, _ := carrying(t, 100*limit)
		told := s.dels(func() {})
		s.pods.change(s.uid, nil)
		wait(t, told, "a pod that is gone is not held back")
		s.until("forgotten", func() bool { return len(s.c.Pods()) == 0 && len(s.namespaces.Known()) == 0 })
	})
	t.Run("not when it is deleted while it leaves", func(t *testing.T) {
		t.Parallel()
		s, _ := carrying(t, 100*limit)
		told := s.dels(func() {})
		s.leave()
		s.pods.change(s.uid, nil)
		wait(t, told, "a pod that is gone is not held back")
		s.until("forgotten", func() bool { return len(s.c.Pods()) == 0 && len(s.namespaces.Known()) == 0 })
	})
	t.Run("as long as a release has time", func(t *testing.T) {
		t.Parallel()
		s, pairs := carrying(t, 100*limit)
		told := s.dels(func() {})
		left, err := s.c.Release(patient{t.Context(), time.Now().Add(8 * time.Second)}, "")
		require.NoError(t, err)
		assert.Empty(t, left)
		wait(t, told, "a release takes out what it can")
		for _, p := range pairs {
			_, _ = p.client.Close(), p.server.Close()
		}
		s.clean()
	})
}

// TestManyLeave: a pod that leaves, with a connection that the proxy does not accept, keeps no worker from those that have yet to leave:
// many do on a machine that is busy, with a single worker.
func TestManyLeave(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.options = func(o *nodecontrol.Options) { o.Workers, o.DrainTimeout, o.VerifyInterval = 1, 100*limit, -1 }
	n.made = func(c *nodecontrol.Controller) { c.SettleFor(100 * limit) }
	n.pods.label("shop", "ambient")
	uids := make([]types.UID, 42)
	for i := range uids {
		uids[i] = n.pod(i)
	}
	n.start()
	for _, uid := range uids {
		n.captured(uid)
		unaccepted(t, n.netns[uid], "127.0.0.1:15006")
	}
	busy, over := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	defer func() { over(); loops.Wait() }()
	for range 2 * runtime.GOMAXPROCS(0) {
		loops.Go(func() {
			for busy.Err() == nil {
			}
		})
	}
	n.pods.label("shop", "")
	for _, uid := range uids {
		n.eventually(uid, status.StateOutside, "not-enabled")
		assert.Empty(t, n.pods.annotation(uid))
		assert.True(t, n.proxy.holds(uid), "it carries a connection")
	}
}

// unaccepted makes a connection to a port of the proxy's that waits to be accepted: of its listeners one never does.
func unaccepted(t *testing.T, ns *netnsexec.NetNS, addr string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 0x539))
			}), err)
		}}
		l, err := lc.Listen(t.Context(), "tcp", addr)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}))
	waits := func() bool {
		dial(t, ns, addr)
		waits, err := listeners.Waits(ns, listeners.Proxy{Inbound: 15006})
		require.NoError(t, err)
		return waits
	}
	waittest.Eventually(t, "a connection waits", func() error {
		if !waits() {
			return errors.New("all were accepted")
		}
		return nil
	})
}

// TestAcknowledgedOnce: a proxy that connects, again or for the first time, is told each pod once, however often the pod is looked at.
func TestAcknowledgedOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, newNode(t, ruleset.BackendNftables), -1)
	s.join()
	for range 3 {
		s.proxy.Kill()
		s.eventually(s.uid, status.StateDrifted, "no-proxy")
		s.proxy = nodeproxytest.Start(t, nodeproxytest.Options{Socket: s.socket})
		s.eventually(s.uid, status.StateCaptured, "captured")
		s.until("the proxy is told all", func() bool { return s.proxy.State().Ready })
		for range 2 { // what a change of the pod leads to is looked at after that of the proxy
			said := s.pods.annotation(s.uid)
			s.pods.change(s.uid, func(p *corev1.Pod) { p.Annotations = nil })
			s.until("looked at", func() bool { return said != "" && s.pods.annotation(s.uid) == said })
		}
		assert.Equal(t, []string{"Add " + string(s.uid), "SnapshotSent"}, s.proxy.State().Requests)
	}
	s.leave()
	s.clean()
}
