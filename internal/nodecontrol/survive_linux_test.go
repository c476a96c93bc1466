package nodecontrol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/status"
)

// limit bounds what would otherwise wait for ever; nothing that works comes near it.
const limit = netnstest.Patience

// shop is a running pod, the world around it, and a proxy that forwards.
type shop struct {
	*node
	uid   types.UID
	world *netnstest.World
	proxy *nodeproxytest.Proxy
	// patience is how long pods that leave are held back; less than zero: not at all.
	patience time.Duration
	socket   string
	// asked is called with each request to the proxy.
	asked atomic.Pointer[func(zds.Request)]
}

func (s *shop) request(r zds.Request) {
	if asked := s.asked.Load(); asked != nil {
		(*asked)(r)
	}
}

// newShop makes it, with the bound of pods that leave.
func newShop(t *testing.T, n *node, patience time.Duration) *shop {
	t.Helper()
	s := &shop{node: n, patience: patience, uid: n.pod(1), world: netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})}
	n.inWorld(s.uid, s.world)
	n.namespaces.mu.Lock()
	n.namespaces.paths[s.uid] = s.world.Pod.Path()
	n.namespaces.mu.Unlock()
	dir, err := os.MkdirTemp("", "survive")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "zds.sock")
	server, err := zds.Listen(t.Context(), zds.Options{
		Path:     path,
		Snapshot: func(ctx context.Context) ([]nodeproxy.Workload, error) { return n.c.Snapshot(ctx) },
		OnChange: func() { n.c.ProxyChanged() },
	})
	require.NoError(t, err)
	also := n.options
	n.options = func(o *nodecontrol.Options) {
		o.Proxy, o.ListenTimeout, o.DrainTimeout = server, limit, s.patience
		if also != nil {
			also(o)
		}
	}
	n.start()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	s.socket = path
	s.proxy = nodeproxytest.Start(t, nodeproxytest.Options{Socket: path, OnRequest: s.request})
	t.Cleanup(func() {
		s.proxy.Kill()
		cancel()
		assert.NoError(t, <-ended)
	})
	n.until("the proxy is told all", func() bool { return s.proxy.State().Ready })
	n.eventually(s.uid, status.StateOutside, "not-enabled")
	return s
}

func (s *shop) join() {
	s.t.Helper()
	s.pods.label("shop", "ambient")
	s.eventually(s.uid, status.StateCaptured, "captured")
	differ, _ := s.rules(s.uid)
	require.Empty(s.t, differ)
}

func (s *shop) leave() {
	s.t.Helper()
	s.pods.label("shop", "")
	s.eventually(s.uid, status.StateOutside, "not-enabled")
}

// has reports whether the proxy has the pod.
func (s *shop) has() bool {
	_, has := s.proxy.State().Pods[s.uid]
	return has
}

// clean waits until nothing of the rules is left.
func (s *shop) clean() {
	s.t.Helper()
	s.until("nothing is left in the namespace", func() bool {
		_, left := s.rules(s.uid)
		return len(left) == 0 && len(s.namespaces.Known()) == 0
	})
}

// carried is how many connections the proxy has accepted so far.
func (s *shop) carried() (n int) {
	p := s.proxy.State().Pods[s.uid]
	return p.Accepted[15001] + p.Accepted[15006]
}

// place is a server that hands over what it accepts.
type place struct {
	ns   *netnsexec.NetNS
	addr string
	news chan net.Conn
}

func (s *shop) place(ns *netnsexec.NetNS, addr string) *place {
	s.t.Helper()
	p := &place{ns, addr, make(chan net.Conn, 100)}
	require.NoError(s.t, ns.Do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		s.t.(*testing.T).Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				p.news <- c
			}
		}()
		return nil
	}))
	return p
}

// places are servers outside and in the pod, in both families, each with where its clients are.
func (s *shop) places(port int) (all map[*place]*netnsexec.NetNS) {
	all = map[*place]*netnsexec.NetNS{}
	for addr, ends := range map[string][2]*netnsexec.NetNS{
		"10.96.5.5": {s.world.Out, s.world.Pod}, "[fd00:96::5]": {s.world.Out, s.world.Pod},
		"10.244.1.5": {s.world.Pod, s.world.Out}, "[fd00:10:244::5]": {s.world.Pod, s.world.Out},
	} {
		all[s.place(ends[0], fmt.Sprintf("%s:%d", addr, port))] = ends[1]
	}
	return all
}

// pair is the two ends of a connection.
type pair struct {
	name           string
	client, server net.Conn
}

func (s *shop) connect(all map[*place]*netnsexec.NetNS) (pairs []pair) {
	s.t.Helper()
	for p, from := range all {
		client := dial(s.t.(*testing.T), from, p.addr)
		server := <-p.news
		s.t.(*testing.T).Cleanup(func() { _ = server.Close() })
		pairs = append(pairs, pair{p.addr, client, server})
	}
	return pairs
}

// goOn: what either end says reaches the other, the server's word first, so that an end which only listens is seen to be reached.
func (s *shop) goOn(pairs []pair, when string) {
	s.t.Helper()
	for _, p := range pairs {
		for _, way := range [][2]net.Conn{{p.server, p.client}, {p.client, p.server}} {
			b := make([]byte, 3)
			_, err := way[0].Write([]byte("say"))
			if err == nil {
				_ = way[1].SetReadDeadline(time.Now().Add(limit))
				_, err = io.ReadFull(way[1], b)
			}
			assert.NoError(s.t, err, "%s: %s, client %v", when, p.name, way[0] == p.client)
		}
	}
}

// end closes one end of each, and sees the other end.
func (s *shop) end(pairs []pair) {
	s.t.Helper()
	for _, p := range pairs {
		_ = p.client.Close()
		_ = p.server.SetReadDeadline(time.Now().Add(limit))
		_, err := p.server.Read(make([]byte, 1))
		assert.ErrorIs(s.t, err, io.EOF, p.name)
		_ = p.server.Close()
	}
}

// asker is a socket that asks a name server again and again.
type asker struct {
	t    testing.TB
	conn net.Conn
	id   uint16
}

func (s *shop) asker(to string) *asker {
	s.t.Helper()
	a := &asker{t: s.t}
	require.NoError(s.t, s.world.Pod.Do(func() (err error) {
		a.conn, err = net.Dial("udp", to)
		return err
	}))
	s.t.(*testing.T).Cleanup(func() { _ = a.conn.Close() })
	return a
}

// ask returns who answers: the server outside says which port it is, the proxy answers the question.
func (a *asker) ask() string {
	a.t.Helper()
	a.id++
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: a.id},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("shop.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	text, err := m.Pack()
	require.NoError(a.t, err)
	_, err = a.conn.Write(text)
	require.NoError(a.t, err)
	_ = a.conn.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 512)
	n, err := a.conn.Read(b)
	require.NoError(a.t, err)
	if err := m.Unpack(b[:n]); err == nil && len(m.Answers) == 1 {
		return m.Answers[0].Body.(*dnsmessage.AResource).GoString()
	}
	return string(b[:n])
}

const proxysAnswer = "dnsmessage.AResource{A: [4]byte{192, 0, 2, 53}}"

// TestConnectionsAcrossJoinAndLeave: what is open when a pod joins goes on outside the mesh, what is open when it leaves goes on
// through the proxy until it ends, as long as that may take, and what is new goes the new way. Nothing is cut, and nothing hangs.
func TestConnectionsAcrossJoinAndLeave(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		s := newShop(t, n, 100*limit)
		servers := s.places(7777)
		resolver, other := s.asker("10.96.0.10:53"), s.asker("10.96.0.10:5353")
		before := s.connect(servers)
		assert.Contains(t, resolver.ask(), "out:53")
		assert.Contains(t, other.ask(), "out:5353")

		s.join()
		assert.Zero(t, s.carried())
		s.goOn(before, "joined")
		assert.Contains(t, other.ask(), "out:5353")
		assert.Equal(t, proxysAnswer, resolver.ask(), "a name server is asked anew each time")
		carried := s.connect(servers)
		s.goOn(carried, "captured")
		assert.Equal(t, len(servers), s.carried(), "what is new is captured, and only that")

		s.leave()
		assert.Contains(t, s.state(s.uid).Detail, "go on until they end")
		s.goOn(before, "left")
		s.goOn(carried, "left")
		assert.Contains(t, resolver.ask(), "out:53", "the proxy is asked no more")
		direct := s.connect(servers)
		s.goOn(direct, "new")

		s.join() // before they have ended
		s.goOn(before, "joined again")
		s.goOn(carried, "joined again")
		s.goOn(direct, "joined again")
		again := s.connect(servers)
		s.goOn(again, "captured again")
		assert.Equal(t, 2*len(servers), s.carried(), "the proxy has had the pod all the time")

		s.leave()
		for _, pairs := range [][]pair{before, carried, direct, again} {
			s.goOn(pairs, "left again")
		}
		_, left := s.rules(s.uid)
		assert.NotEmpty(t, left, "translation goes on")
		s.end(carried)
		assert.True(t, s.has(), "it still carries the others")
		s.end(again)
		s.clean()
		assert.False(t, s.has())
		s.goOn(before, "all is as before")
		s.goOn(direct, "all is as before")
		s.goOn(s.connect(servers), "all is as before")
	})
}

// TestProxyEndsAfterLeaving: connections that the proxy cuts when it is told that the pod has left, as ztunnel does, end at both ends,
// also where nobody sends; whether the bound has passed, or nothing is held back.
func TestProxyEndsAfterLeaving(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{"at once": -1, "late": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachBackend(t, func(t *testing.T, n *node) {
				s := newShop(t, n, patience)
				servers := s.places(7777)
				s.join()
				carried := s.connect(servers)
				s.goOn(carried, "captured")
				s.leave()
				for _, p := range carried {
					for who, end := range map[string]net.Conn{"client": p.client, "server": p.server} {
						_ = end.SetReadDeadline(time.Now().Add(limit))
						_, err := end.Read(make([]byte, 1))
						require.Error(t, err)
						assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the %s of %s hangs", who, p.name)
						_ = end.Close()
					}
				}
				s.clean()
				assert.False(t, s.has())
			})
		})
	}
}

func inNetNS(ns *netnsexec.NetNS, name string, args ...string) (string, error) {
	var b strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &b, &b
	err := ns.Run(cmd)
	return b.String(), err
}

// TestConnectionsBeingMade: those of which one end has not heard yet when the pod joins are made all the same, either way.
func TestConnectionsBeingMade(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		s := newShop(t, n, -1)
		servers := s.places(7778)
		// The servers' answers are lost.
		for _, command := range []string{
			"add table inet lossy", "add chain inet lossy in { type filter hook prerouting priority -500; }",
			"add rule inet lossy in tcp sport 7778 drop",
		} {
			for _, ns := range []*netnsexec.NetNS{s.world.Out, s.world.Pod} {
				out, err := inNetNS(ns, "nft", command)
				require.NoError(t, err, out)
			}
		}
		type made struct {
			pair
			err error
		}
		results := make(chan made, len(servers))
		for p, from := range servers {
			go func() {
				var c net.Conn
				err := from.Do(func() (err error) {
					c, err = net.DialTimeout("tcp", p.addr, limit)
					return err
				})
				if err != nil {
					results <- made{pair{name: p.addr}, err}
					return
				}
				results <- made{pair{p.addr, c, <-p.news}, nil}
			}()
		}
		for _, ns := range []*netnsexec.NetNS{s.world.Pod, s.world.Out} {
			n.until("all are under way", func() bool {
				sent, err := inNetNS(ns, "ss", "-Htn", "state", "syn-sent")
				recv, err2 := inNetNS(ns, "ss", "-Htn", "state", "syn-recv")
				require.NoError(t, errors.Join(err, err2))
				return strings.Count(sent, "\n") == 2 && strings.Count(recv, "\n") == 2
			})
		}
		s.join()
		for _, ns := range []*netnsexec.NetNS{s.world.Out, s.world.Pod} {
			out, err := inNetNS(ns, "nft", "delete table inet lossy")
			require.NoError(t, err, out)
		}
		var pairs []pair
		for range servers {
			m := <-results
			require.NoError(t, m.err, m.name)
			t.Cleanup(func() { _, _ = m.client.Close(), m.server.Close() })
			pairs = append(pairs, m.pair)
		}
		s.goOn(pairs, "made")
		assert.Zero(t, s.carried(), "they began outside the mesh")
	})
}

// TestConnectionsWhileJoiningAndLeaving: of those that are made one after the other meanwhile, each is answered.
func TestConnectionsWhileJoiningAndLeaving(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		s := newShop(t, n, 0)
		echo(t, s.world.Out, "10.96.5.5:7779")
		echo(t, s.world.Pod, "10.244.1.5:7779")
		stop := make(chan struct{})
		var all sync.WaitGroup
		var mu sync.Mutex
		var failed []string
		made := 0
		for addr, from := range map[string]*netnsexec.NetNS{"10.96.5.5:7779": s.world.Pod, "10.244.1.5:7779": s.world.Out} {
			for range 2 {
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						err := exchange(from, addr)
						mu.Lock()
						if made++; err != nil {
							failed = append(failed, err.Error())
						}
						mu.Unlock()
					}
				})
			}
		}
		for range longtest.Rounds(1, 3) {
			s.join()
			s.leave()
			s.until("the proxy has let it go", func() bool { return !s.has() })
		}
		close(stop)
		all.Wait()
		assert.Empty(t, failed, "of %d connections", made)
		s.clean()
	})
}

// exchange makes a connection, says a word and hears it.
func exchange(from *netnsexec.NetNS, addr string) error {
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", addr, limit)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(limit))
	if _, err = c.Write([]byte("x")); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	return err
}
