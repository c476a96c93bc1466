package conntrack

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const dnsPort = 15053

// queries redirects DNS in a new namespace to the port, and asks so many servers, of which none answers.
func queries(t *testing.T, n int) (ns *netnsexec.NetNS, left func() int) {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nft"))
	ns = netnstest.New(t)
	nft := exec.CommandContext(t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader("table ip t { chain o { type nat hook output priority -100; udp dport 53 redirect to :15053; }; }")
	require.NoError(t, ns.Sandbox().Run(nft))
	var socket *net.UDPConn
	require.NoError(t, ns.Do(func() (err error) {
		socket, err = net.ListenUDP("udp4", nil)
		return err
	}))
	t.Cleanup(func() { _ = socket.Close() })
	for i := range n {
		server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 53)
		_, _ = socket.WriteToUDPAddrPort([]byte("?"), server) // nobody listens, of which the socket hears later
	}
	return ns, func() int {
		table := open(t, ns)
		all, _, whole, err := table.datagrams(limits{bytes: 1 << 20, held: n + 1}, unix.AF_INET, dnsPort, false)
		require.NoError(t, err)
		require.True(t, whole)
		return len(all)
	}
}

func open(t *testing.T, ns *netnsexec.NetNS) *Table {
	t.Helper()
	table, err := Open(ns)
	require.NoError(t, err)
	t.Cleanup(table.Close)
	return table
}

// TestForgetIsBounded: however many entries a pod makes, only so many are held at a time, asked for and read.
func TestForgetIsBounded(t *testing.T) {
	t.Parallel()
	const n = 300
	ns, left := queries(t, n)
	require.Equal(t, n, left())
	few := limits{bytes: 1 << 20, held: 16, lists: 2, timeout: netnstest.Patience}

	_, err := open(t, ns).forgetWithin(limits{bytes: 2 << 10, held: few.held, lists: 1, timeout: few.timeout}, dnsPort, false)
	require.ErrorIs(t, err, nfnetlink.ErrLong)

	before := left()
	_, err = open(t, ns).forgetWithin(few, dnsPort, false)
	require.ErrorIs(t, err, ErrMany)
	assert.Equal(t, before-32, left(), "two lists of 16")

	kept, err := open(t, ns).forgetWithin(few, dnsPort, true)
	require.NoError(t, err)
	assert.Equal(t, before-32, kept, "those without an answer stay")
	assert.Equal(t, before-32, left())

	_, err = open(t, ns).ForgetDatagrams(dnsPort, false)
	require.NoError(t, err)
	assert.Zero(t, left())

	ns, left = queries(t, n)
	few.timeout = 0
	_, err = open(t, ns).forgetWithin(few, dnsPort, false)
	require.ErrorIs(t, err, ErrMany)
	assert.Equal(t, n-16, left(), "its time was over after the first list")
}
