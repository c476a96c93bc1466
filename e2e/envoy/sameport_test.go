package envoy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/e2e/internal/envoy"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestSamePort: under TPROXY the proxy speaks to the application from the client's address, and from a port of its own choice. A client
// that comes from that very port meanwhile cannot get in: to the kernel it is the same connection. It gets in once the proxy's is
// closed. Under REDIRECT the proxy has an address of its own, and nobody waits.
func TestSamePort(t *testing.T) {
	dst := netip.AddrPortFrom(podIP[0], portHTTP)
	for mode, gets := range map[string]bool{"REDIRECT": true, "TPROXY": false} {
		t.Run(mode, func(t *testing.T) {
			p := newPod(t, ruleset.BackendNftables, istioPod(mode), istioShape(mode))
			x, err := once(t.Context(), p.fromOut, dst) // Envoy's connection stays open for others
			require.NoError(t, err)
			again := p.begin(t, netip.MustParseAddrPort(x.seen.Remote).Port(), dst)
			_, err = once(t.Context(), p.fromOut, dst)
			require.NoError(t, err, "from another port")
			if gets {
				require.NoError(t, proctest.Poll(talkTime, func() error { return connected(again) }))
				return
			}
			require.ErrorIs(t, connected(again), unix.ENOTCONN)
			p.proxy.Kill()
			p.proxy.Start()
			require.NoError(t, proctest.Poll(talkTime, func() error { return connected(again) }))
		})
	}
}

// TestPortUsedAgain: a client's port that is used for a second destination is another one for Envoy, since REDIRECT makes both
// connections to one of its ports, and the kernel has to tell their answers apart. Both get through; who compares the client's port with
// Envoy's log has to know.
func TestPortUsedAgain(t *testing.T) {
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			p := newPod(t, backend, istioPod("REDIRECT"), istioShape("REDIRECT"))
			const port = 33333
			c := p.fromApp
			for i, to := range []netip.Addr{serviceIP[0], clientIP[0]} {
				dst := netip.AddrPortFrom(to, portTCP)
				c.ports = &ports{first: port, count: 1}
				x := clientEnds(t, c, dst, nil)
				assert.Equal(t, "out", x.seen.Server)
				assert.Equal(t, uint16(port), netip.MustParseAddrPort(x.client).Port())
				found, err := p.proxy.Await(1, func(e envoy.Entry) bool { return e.Original == dst.String() })
				require.NoError(t, err)
				require.Len(t, found, 1)
				assert.Equal(t, i == 0, found[0].Remote == x.client, "%+v", found)
			}
		})
	}
}

// begin begins a connection from a port of the client's, and returns its socket.
func (p *pod) begin(t *testing.T, port uint16, dst netip.AddrPort) (fd int) {
	t.Helper()
	fd, err := p.world.Out.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: clientIP[0].As4(), Port: int(port)}))
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: dst.Addr().As4(), Port: int(dst.Port())})
	require.ErrorIs(t, err, unix.EINPROGRESS)
	return fd
}

// connected returns why a connection is not made.
func connected(fd int) error {
	_, err := unix.Getpeername(fd)
	return err
}
