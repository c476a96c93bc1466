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
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy/internal/listeners"
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
	ports := map[uint16]bool{}
	for _, n := range needs {
		ports[n.Port] = true
	}
	sockets, err := listeners.List(ns, ports)
	require.NoError(t, err)
	return listeners.Words(listeners.Missing(needs, sockets, []netip.Addr{netip.MustParseAddr("10.244.1.5")}))
}

// TestMissing: a listener counts if the redirected connection reaches it, in that family, that protocol, that namespace.
func TestMissing(t *testing.T) {
	t.Parallel()
	ns, other := netnstest.New(t), netnstest.New(t)
	needs := listeners.Needed(ambient.Defaults(), ruleset.Families[:])
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
	r := ambient.Defaults()
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15006, tcp/ipv4 15008, udp/ipv4 15053, tcp/ipv4 15053", listeners.Words(listeners.Needed(r, v4)))
	r.Inbound = redirect.Inbound{}
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15008, udp/ipv4 15053, tcp/ipv4 15053", listeners.Words(listeners.Needed(r, v4)))
	r.DNS.UDPOnly = true
	assert.Equal(t, "tcp/ipv4 15001, tcp/ipv4 15008, udp/ipv4 15053", listeners.Words(listeners.Needed(r, v4)))
	r.DNS, r.Proxy.TunnelPort = redirect.DNS{}, 0
	assert.Equal(t, "tcp/ipv4 15001", listeners.Words(listeners.Needed(r, v4)))
	assert.Empty(t, listeners.Needed(r, nil))
}

// TestManySockets: the answer comes in many packets.
func TestManySockets(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	require.NoError(t, ns.Do(func() error {
		for range 600 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
				return err
			}
		}
		return nil
	}))
	listen(t, ns, "udp4", "0.0.0.0:15053")
	sockets, err := listeners.List(ns, map[uint16]bool{15053: true})
	require.NoError(t, err)
	assert.Equal(t, []listeners.Socket{{UDP: true, Port: 15053, Addr: netip.IPv4Unspecified()}}, sockets)

	require.NoError(t, ns.Close())
	_, err = listeners.List(ns, nil)
	assert.Error(t, err, "what cannot be asked has no answer")
}
