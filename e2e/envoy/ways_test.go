package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/meshcni/meshcni/e2e/internal/envoy"
	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// ways are connections that go another way than straight through: what passes, what comes back, what ends in between.
func (p *pod) ways(t *testing.T, family int, mode string) {
	t.Run("hairpin", func(t *testing.T) { p.hairpin(t, family) })
	t.Run("headless", func(t *testing.T) { p.outbound(t, kinds()[0], clientIP[family]) })
	t.Run("application on localhost", func(t *testing.T) { p.onLocalhost(t, family, mode) })
	t.Run("excluded", func(t *testing.T) { p.excluded(t, family) })
	t.Run("probes", func(t *testing.T) { p.probes(t, family) })
	t.Run("rewritten probes", func(t *testing.T) { p.rewrittenProbes(t, family) })
	t.Run("DNS", func(t *testing.T) { p.dns(t, family) })
	t.Run("the proxy's own ports", func(t *testing.T) { p.ownPorts(t, family) })
	t.Run("short connections", func(t *testing.T) { p.short(t, family) })
}

// hairpin calls the pod's own service, which comes back to the pod: out by the service's listener, and in again.
func (p *pod) hairpin(t *testing.T, family int) {
	vip, endpoint := netip.AddrPortFrom(ownIP[family], ownPort), netip.AddrPortFrom(podIP[family], portHTTP)
	x := http1(t, p.fromApp, vip, nil)
	assert.Equal(t, "app", x.seen.Server)
	out, err := p.proxy.Await(1, to(vip, x.client))
	require.NoError(t, err)
	require.Len(t, out, 1)
	assert.Equal(t, "service", out[0].Listener)
	assert.Equal(t, vip.String(), out[0].Original)
	assert.Equal(t, endpoint.String(), out[0].Upstream)
	in, err := p.proxy.Await(1, to(endpoint, out[0].Source))
	require.NoError(t, err)
	require.Len(t, in, 1)
	assert.Equal(t, "inbound", in[0].Listener)
	assert.Equal(t, endpoint.String(), in[0].Original)
	assert.Equal(t, x.seen.Remote, in[0].Source)
	again, err := p.proxy.Await(0, to(endpoint, in[0].Source))
	require.NoError(t, err)
	assert.Empty(t, again, "it looped")
}

// onLocalhost reaches an application that listens on the loopback address: from the pod itself without Envoy, and from
// outside by Envoy's cluster for the port. Not with TPROXY: the loopback address takes nothing from a client's address.
func (p *pod) onLocalhost(t *testing.T, family int, mode string) {
	p.straight(t, p.fromApp, netip.AddrPortFrom(netip.MustParseAddr([]string{"127.0.0.1", "::1"}[family]), portLocal))
	if mode == "TPROXY" {
		return
	}
	dst := netip.AddrPortFrom(podIP[family], portLocal)
	x := http1(t, p.fromOut, dst, nil)
	assert.Equal(t, "app", x.seen.Server)
	e := p.only(t, x, dst, "http")
	assert.Equal(t, dst.String(), e.Original)
	assert.Equal(t, fmt.Sprint("127.0.0.1:", portLocal), e.Upstream)
}

// excluded connections do not touch Envoy: an excluded port in both directions, an excluded range, and the application's
// calls to its own pod's address.
func (p *pod) excluded(t *testing.T, family int) {
	p.straight(t, p.fromApp, netip.AddrPortFrom(serviceIP[family], portExcluded))
	p.straight(t, p.fromOut, netip.AddrPortFrom(podIP[family], portExcluded))
	p.straight(t, p.fromApp, netip.AddrPortFrom(excluded[family], portHTTP))
	p.straight(t, p.fromApp, netip.AddrPortFrom(podIP[family], portHTTP))
}

// straight makes a connection that the server sees as the client made it.
func (p *pod) straight(t *testing.T, c caller, dst netip.AddrPort) {
	t.Helper()
	x := http1(t, c, dst, nil)
	assert.Equal(t, x.client, x.seen.Remote, "to %s", dst)
}

// dns asks a server outside, and Envoy answers over UDP; over TCP, it asks that server.
func (p *pod) dns(t *testing.T, family int) {
	server := netip.AddrPortFrom(addrs("10.96.0.10", "fd00:96::10")[family], 53)
	name, kind := dnsmessage.MustNewName("cart.shop.svc."), dnsmessage.TypeA
	if family == 1 {
		kind = dnsmessage.TypeAAAA
	}
	question := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := question.Pack()
	require.NoError(t, err)
	conn := p.dialUDP(t, server)
	_, err = conn.Write(packed)
	require.NoError(t, err)
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer) // the socket is connected: the answer came from the server that was asked
	require.NoError(t, err)
	var answer dnsmessage.Message
	require.NoError(t, answer.Unpack(buffer[:n]))
	require.Len(t, answer.Answers, 1)
	switch record := answer.Answers[0].Body.(type) {
	case *dnsmessage.AResource:
		assert.Equal(t, ownIP[0], netip.AddrFrom4(record.A))
	case *dnsmessage.AAAAResource:
		assert.Equal(t, ownIP[1], netip.AddrFrom16(record.AAAA))
	default:
		assert.Fail(t, "no address", "%+v", record)
	}

	overTCP := p.fromApp.connect(t, server)
	text, err := io.ReadAll(overTCP)
	require.NoError(t, err)
	assert.Contains(t, string(text), "out:53", "the world's server, which speaks first")
	require.NoError(t, overTCP.Close())
	found, err := p.proxy.Await(1, to(server, overTCP.LocalAddr().String()))
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, "dns-tcp", found[0].Listener)
	assert.Equal(t, server.String(), found[0].Original)
}

func (p *pod) dialUDP(t *testing.T, server netip.AddrPort) (conn net.Conn) {
	t.Helper()
	require.NoError(t, p.world.Pod.Do(func() error {
		restore, err := ownsock.Become(appID, appID)
		if err != nil {
			return err
		}
		defer restore()
		conn, err = net.Dial("udp", server.String()) //nolint:noctx // does not block
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(talkTime)))
	return conn
}

// ownPorts: who speaks to the proxy's ports is refused by it, and makes it speak to nobody: there is no loop.
func (p *pod) ownPorts(t *testing.T, family int) {
	dst := netip.AddrPortFrom(podIP[family], 15006)
	conn := p.fromOut.connect(t, dst)
	_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: loop\r\n\r\n"))
	require.NoError(t, err)
	_, _ = io.ReadAll(conn) // ended or reset
	found, err := p.proxy.Await(1, to(dst, conn.LocalAddr().String()))
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, "blackhole", found[0].Listener)
	assert.Empty(t, found[0].Source)
}

// short makes many short connections, both ways: each is one entry, none goes past Envoy, and the pod's conntrack table
// has at most the four entries that one connection takes under REDIRECT: two of it, two of Envoy's own.
func (p *pod) short(t *testing.T, family int) {
	before, entries := p.conntrack(t), p.count(t)
	out, in := netip.AddrPortFrom(serviceIP[family], portHTTP), netip.AddrPortFrom(podIP[family], portHTTP)
	var workers sync.WaitGroup
	var failed atomic.Int64
	for range 4 {
		workers.Go(func() {
			for i := range connections / 4 {
				c, dst := p.fromApp, out
				if i%2 == 1 {
					c, dst = p.fromOut, in
				}
				if err := past(t.Context(), c, dst); err != nil {
					failed.Add(1)
					t.Logf("connection %d to %s: %v", i, dst, err)
				}
			}
		})
	}
	workers.Wait()
	require.Zero(t, failed.Load())
	assert.LessOrEqual(t, p.conntrack(t)-before, 4*connections)
	_, err := p.proxy.Await(entries+connections, func(envoy.Entry) bool { return true })
	require.NoError(t, err)
	assert.Equal(t, entries+connections, p.count(t))
}

func (p *pod) count(t *testing.T) int {
	t.Helper()
	entries, err := p.proxy.Entries()
	require.NoError(t, err)
	return len(entries)
}

// past makes a request on a connection of its own, and fails with errPast if the server saw the client itself. To the same
// destination, Envoy cannot connect from a port that the client has in use.
func past(ctx context.Context, c caller, dst netip.AddrPort) error {
	x, err := once(ctx, c, dst)
	if err == nil && x.seen.Remote == x.client {
		return fmt.Errorf("%s to %s: %w", x.client, dst, errPast)
	}
	return err
}

// once makes a request on a connection of its own, by way of Envoy, which writes names of headers in small letters.
func once(ctx context.Context, c caller, dst netip.AddrPort) (x exchange, err error) {
	var answer string
	if x.client, answer, err = ask(ctx, c, dst); err != nil {
		return x, err
	}
	_, header, found := strings.Cut(answer, "seen: ")
	line, _, _ := strings.Cut(header, "\r\n")
	if !found {
		return x, fmt.Errorf("%w: %.100s", errNoAnswer, answer)
	}
	return x, json.Unmarshal([]byte(line), &x.seen)
}

// ask makes a request on a connection of its own, and returns the client's address and the answer.
func ask(ctx context.Context, c caller, dst netip.AddrPort) (client, answer string, err error) {
	conn, err := c.dial(ctx, dst)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(talkTime))
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", dst); err != nil {
		return "", "", err
	}
	text, err := io.ReadAll(conn)
	return conn.LocalAddr().String(), string(text), err
}

var (
	errNoAnswer = errors.New("no answer of a server")
	errPast     = errors.New("past Envoy")
)

// conntrack is how many entries the pod's table has.
func (p *pod) conntrack(t testing.TB) (n int) {
	t.Helper()
	require.NoError(t, p.world.Pod.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	}))
	return n
}

// restart ends Envoy under load, both ways, and starts it again. Meanwhile connections fail, and none goes past it.
func (p *pod) restart(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var good, bad atomic.Int64
	wrong := make(chan error, 1)
	for i, dst := range []netip.AddrPort{netip.AddrPortFrom(serviceIP[0], portHTTP), netip.AddrPortFrom(podIP[1], portHTTP)} {
		c := []caller{p.fromApp, p.fromOut}[i]
		workers.Go(func() {
			for ctx.Err() == nil {
				switch err := past(ctx, c, dst); {
				case err == nil:
					good.Add(1)
				case errors.Is(err, errPast):
					select {
					case wrong <- err:
					default:
					}
				default:
					bad.Add(1)
				}
			}
		})
	}
	more := func(what *atomic.Int64) {
		t.Helper()
		from := what.Load()
		require.NoError(t, proctest.Poll(talkTime, func() error {
			if what.Load() < from+10 {
				return fmt.Errorf("%d connections succeeded and %d failed", good.Load(), bad.Load())
			}
			return nil
		}))
	}
	more(&good)
	p.proxy.Kill()
	more(&bad)
	p.proxy.Start()
	more(&good)
	stop()
	workers.Wait()
	select {
	case err := <-wrong:
		assert.NoError(t, err)
	default:
	}
}
