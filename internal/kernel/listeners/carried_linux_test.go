package listeners_test

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
)

// open makes a connection within a namespace, with a mark, and returns its end.
func open(t *testing.T, ns *netnsexec.NetNS, to string, mark int) (end func()) {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if errRaw := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }); errRaw != nil {
			return errRaw
		}
		return err
	}}
	var c net.Conn
	require.NoError(t, ns.Do(func() (err error) {
		c, err = d.DialContext(t.Context(), "tcp", to)
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return func() { _ = c.(*net.TCPConn).SetLinger(0); _ = c.Close() }
}

// TestCarried: what a proxy carries is what is redirected to it, and what it carries on to the application. A peer's connection to the tunnel
// that nothing uses is none, nor is what the application or the proxy do besides.
func TestCarried(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	for name, addrs := range map[string]struct{ own, loopback string }{"ipv4": {"10.244.1.5", "127.0.0.1"}, "ipv6": {"fd00:10:244::5", "::1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
			own := netip.MustParseAddr(addrs.own)
			for _, port := range []int{15001, 15006, 15008, 15053, 9999} {
				listen(t, w.Pod, "tcp", fmt.Sprint("[::]:", port))
			}
			listen(t, w.Out, "tcp", "[::]:9998")
			p := listeners.Proxy{
				Outbound: []uint16{15001, 15053}, Inbound: 15006, Tunnel: 15008, Mark: redirect.Mark{Value: 0x539, Mask: 0xfff}, Own: []netip.Addr{own},
			}
			at := func(port int) string { return netip.AddrPortFrom(own, uint16(port)).String() }
			carried := func(p listeners.Proxy) int {
				n, _, err := listeners.Carried(w.Pod, p)
				require.NoError(t, err)
				return n
			}
			open(t, w.Out, at(15008), 0)
			open(t, w.Pod, at(9999), 0)
			open(t, w.Pod, at(9999), 0x53a)
			open(t, w.Pod, netip.AddrPortFrom(netip.MustParseAddr(addrs.loopback), 9999).String(), 0)
			peer := map[string]string{"ipv4": "10.244.1.1:9998", "ipv6": "[fd00:10:244::1]:9998"}[name]
			open(t, w.Pod, peer, 0x539) // the proxy's own pool
			assert.Zero(t, carried(p))
			p.Mark = redirect.Mark{}
			assert.Equal(t, 1, carried(p), "without a mark, who comes by the tunnel may be carried")
			p.Mark = redirect.Mark{Value: 0x539}

			tunnelled := open(t, w.Pod, at(9999), 0x539)
			assert.Equal(t, 1, carried(p))
			p.Mark.Mask = 0xfff
			marked := open(t, w.Pod, at(9999), 0x1539)
			assert.Equal(t, 2, carried(p), "other bits are others'")
			outbound := open(t, w.Pod, at(15001), 0)
			assert.Equal(t, 3, carried(p))
			inbound := open(t, w.Out, at(15006), 0)
			assert.Equal(t, 3, carried(p), "one of the two may be that one")
			tunnelled()
			marked()
			assert.Equal(t, 2, carried(p))
			outbound()
			inbound()
			assert.Zero(t, carried(p))

			waits, err := listeners.Waits(w.Pod, p)
			require.NoError(t, err)
			assert.True(t, waits, "nobody has accepted any, also of those that have ended")
			p.Outbound, p.Inbound, p.Tunnel = nil, 9997, 0
			waits, err = listeners.Waits(w.Pod, p)
			require.NoError(t, err)
			assert.False(t, waits, "what waits is not the proxy's")
		})
	}
}
