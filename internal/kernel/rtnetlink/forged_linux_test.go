package rtnetlink_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// noting notes the socket that is opened.
type noting struct {
	rtnetlink.Socketer
	fd int
}

func (n *noting) Socket(domain, typ, proto int) (fd int, err error) {
	n.fd, err = n.Socketer.Socket(domain, typ, proto)
	return n.fd, err
}

// TestForgedAnswers: whoever has CAP_NET_ADMIN in a namespace can send to a socket there. What it says is no answer of the kernel's: an
// address that it claims is not there. Nor can it keep a reader busy.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	ns := netnstest.New(t)
	n := &noting{Socketer: ns}
	limit := rtnetlink.Default
	limit.Bytes = 32 << 10
	c := rtnetlink.New(n, limit)
	defer c.Close()
	claimed := netip.MustParseAddr("10.244.1.5")
	h, err := c.Has([]netip.Addr{claimed})
	require.NoError(t, err)
	require.Len(t, h.Missing, 1)
	to, err := unix.Getsockname(n.fd)
	require.NoError(t, err)
	tenant, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer func() { _ = unix.Close(tenant) }()

	address := func(seq uint32) []byte {
		b := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+unix.SizeofIfAddrmsg+unix.SizeofRtAttr+4)
		b = binary.NativeEndian.AppendUint16(b, unix.RTM_NEWADDR)
		b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_MULTI)
		b = binary.NativeEndian.AppendUint32(b, seq)
		b = binary.NativeEndian.AppendUint32(b, 0)
		b = append(b, unix.AF_INET, 24, 0, 0, 1, 0, 0, 0)
		b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
		b = binary.NativeEndian.AppendUint16(b, unix.IFA_LOCAL)
		return append(b, claimed.AsSlice()...)
	}
	for seq := range uint32(64) { // whichever the next questions have
		require.NoError(t, unix.Sendto(tenant, address(seq), 0, to))
	}
	h, err = c.Has([]netip.Addr{claimed})
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{claimed}, h.Missing)

	flood := make([]byte, 0, 16<<10)
	for len(flood)+64 < cap(flood) {
		flood = append(flood, address(1<<30)...)
	}
	for range 8 {
		require.NoError(t, unix.Sendto(tenant, flood, 0, to))
	}
	_, err = c.Has([]netip.Addr{claimed})
	require.ErrorIs(t, err, nfnetlink.ErrLong)
}
