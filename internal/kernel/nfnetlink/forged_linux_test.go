package nfnetlink_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestForgedAnswers: whoever has CAP_NET_ADMIN in a namespace can send to a socket there. What it says is no answer of the kernel's, and
// cannot keep a reader busy.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	ns := netnstest.New(t)
	socket := func() int {
		fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	c := nfnetlink.Conn{FD: socket()}
	tables := func() (names []string, err error) {
		err = c.Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
			names = append(names, m.Text(unix.NFTA_TABLE_NAME))
		})
		return names, err
	}
	c.Begin(1 << 20)
	names, err := tables() // which gives the socket its address
	require.NoError(t, err)
	require.Empty(t, names)
	to, err := unix.Getsockname(c.FD)
	require.NoError(t, err)

	tenant := socket()
	forge := func() {
		w := nfnetlink.Writer{Seq: c.Seq + 1}
		w.Begin(nfnetlink.TypeOf(unix.NFT_MSG_NEWTABLE), unix.NLM_F_MULTI, unix.NFPROTO_INET, 0)
		w.Text(unix.NFTA_TABLE_NAME, "forged")
		w.End()
		w.Seq = c.Seq + 1
		w.Begin(unix.NLMSG_DONE, unix.NLM_F_MULTI, 0, 0)
		w.End()
		require.NoError(t, unix.Sendto(tenant, w.B, 0, to))
	}
	forge()
	names, err = tables()
	require.NoError(t, err)
	assert.Empty(t, names)

	for range 100 {
		forge()
	}
	c.Begin(1 << 10)
	_, err = tables()
	require.ErrorIs(t, err, nfnetlink.ErrLong)
}
