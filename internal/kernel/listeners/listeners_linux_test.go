package listeners_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

func listen(t *testing.T, ns *netnsexec.NetNS, network, addr string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		var lc net.ListenConfig
		if network[:3] == "udp" {
			c, err := lc.ListenPacket(context.Background(), network, addr)
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
			}
			return err
		}
		l, err := lc.Listen(context.Background(), network, addr)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}))
}

func missing(t *testing.T, ns *netnsexec.NetNS, needs []listeners.Need) string {
	t.Helper()
	lacks, err := listeners.Missing(ns, needs, []netip.Addr{netip.MustParseAddr("10.244.1.5")})
	require.NoError(t, err)
	return listeners.Words(lacks)
}

// TestMissing: a listener counts if the redirected connection reaches it, in that family, that protocol, that namespace.
func TestMissing(t *testing.T) {
	t.Parallel()
	ns, other := netnstest.New(t), netnstest.New(t)
	needs := listeners.Needed(ambient.DefaultRedirect(), ruleset.Families[:])
	for _, all := range []string{":15001", ":15006", ":15008", ":15053"} {
		listen(t, other, "tcp", all)
	}
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15006, tcp/ipv4 15008, udp/ipv4 15053, tcp/ipv4 15053, "+
		"tcp/ipv6 15001, tcp/ipv6 15006, tcp/ipv6 15008, udp/ipv6 15053, tcp/ipv6 15053", missing(t, ns, needs))

	listen(t, ns, "tcp", "[::]:15001") // both families
	listen(t, ns, "tcp6", "[::]:15006")
	listen(t, ns, "tcp", "127.0.0.1:15006") // nobody outside reaches it
	listen(t, ns, "tcp4", "0.0.0.0:15008")
	listen(t, ns, "udp", "127.0.0.1:15053")
	listen(t, ns, "tcp", "127.0.0.1:15053")
	listen(t, ns, "tcp", "127.0.0.1:9090")
	assert.Equal(t, "tcp/ipv4 15006, tcp/ipv6 15008, udp/ipv6 15053, tcp/ipv6 15053", missing(t, ns, needs))
	listen(t, ns, "udp", "[::1]:15053")
	listen(t, ns, "tcp", "[::1]:15053")
	listen(t, ns, "tcp6", "[::]:15008")
	assert.Equal(t, "tcp/ipv4 15006", missing(t, ns, needs))

	// A connection from the port is no listener on it.
	l := netnstest.New(t)
	require.NoError(t, l.Do(func() error {
		server, err := net.Listen("tcp", "127.0.0.1:80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = server.Close() })
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 15001}}
		c, err := d.Dial("tcp", "127.0.0.1:80")
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
		return err
	}))
	assert.Contains(t, missing(t, l, needs), "tcp/ipv4 15001")
}

// TestNeeded: what a pod's settings do not redirect needs no listener.
func TestNeeded(t *testing.T) {
	t.Parallel()
	v4 := []ruleset.Family{ruleset.IPv4}
	r := ambient.DefaultRedirect()
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15006, tcp/ipv4 15008, udp/ipv4 15053, tcp/ipv4 15053", listeners.Words(listeners.Needed(r, v4)))
	r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()}
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15008, udp/ipv4 15053, tcp/ipv4 15053", listeners.Words(listeners.Needed(r, v4)))
	r.DNS.UDPOnly = true
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15008, udp/ipv4 15053", listeners.Words(listeners.Needed(r, v4)))
	r.DNS, r.Proxy.TunnelPort = redirect.DNS{}, 0
	assert.Equal(t, "tcp/ipv4 15001", listeners.Words(listeners.Needed(r, v4)))
	assert.Empty(t, listeners.Needed(r, nil))
}

// fill binds n datagram sockets of the namespace, each to an address of its own. A port of 0: each to a port of its own.
func fill(t *testing.T, ns *netnsexec.NetNS, n, port int) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		for i := range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1); err != nil {
				return err
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}}); err != nil {
				return err
			}
		}
		return nil
	}))
}

var dns = []listeners.Need{{Family: ruleset.IPv4, UDP: true, Port: 15053, Loopback: true}}

// TestManySockets: sockets of other ports are not even read; of the port itself, no more than the bound are, and none that comes
// after the one that serves.
func TestManySockets(t *testing.T) {
	t.Parallel()
	one := rtnetlink.Limit{Messages: 1, Bytes: 8 << 10, Time: netnstest.Patience}
	ns := netnstest.New(t)
	fill(t, ns, 10_000, 0)
	lacks, err := listeners.MissingWithin(ns, dns, nil, one)
	require.NoError(t, err)
	assert.Equal(t, dns, lacks)
	listen(t, ns, "udp4", "127.0.0.1:15053")
	lacks, err = listeners.MissingWithin(ns, dns, nil, one)
	require.NoError(t, err)
	assert.Empty(t, lacks)

	crowded := netnstest.New(t)
	fill(t, crowded, 2000, 15053)
	lacks, err = listeners.Missing(crowded, dns, nil)
	require.NoError(t, err)
	assert.Equal(t, dns, lacks, "nobody can reach them by the loopback address")
	_, err = listeners.MissingWithin(crowded, dns, nil, rtnetlink.Limit{Messages: 1000, Bytes: 8 << 20, Time: netnstest.Patience})
	require.ErrorIs(t, err, nfnetlink.ErrLong)
	assert.ErrorContains(t, err, "over 1000")
	_, err = listeners.MissingWithin(crowded, dns, nil, rtnetlink.Limit{Messages: 1 << 16, Bytes: 32 << 10, Time: netnstest.Patience})
	assert.ErrorIs(t, err, nfnetlink.ErrLong, "bytes")

	require.NoError(t, ns.Close())
	_, err = listeners.Missing(ns, dns, nil)
	assert.Error(t, err, "what cannot be asked has no answer")
}

// TestManyConnections: of more than the bound, as many are returned or counted, with an error that says so.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	ns := netnstest.New(t)
	listen(t, ns, "tcp", "127.0.0.1:15001")
	for range 300 {
		open(t, ns, "127.0.0.1:15001", 0)
	}
	p := listeners.Proxy{Outbound: []uint16{15001}}
	within := rtnetlink.Limit{Messages: 100, Bytes: 8 << 20, Time: netnstest.Patience}
	n, _, err := listeners.Carried(ns, p)
	require.NoError(t, err)
	assert.Equal(t, 300, n)
	n, _, err = listeners.CarriedWithin(ns, p, within)
	require.ErrorIs(t, err, nfnetlink.ErrLong)
	assert.LessOrEqual(t, n, 100)
	all, err := listeners.Connections(ns)
	require.NoError(t, err)
	assert.Len(t, all, 601, "both ends, and the listener with its queue")
	all, err = listeners.ConnectionsWithin(ns, within)
	require.ErrorIs(t, err, nfnetlink.ErrLong)
	assert.Len(t, all, 100)
}
