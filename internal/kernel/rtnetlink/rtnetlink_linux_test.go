package rtnetlink_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink/rttest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestRoutes: only the routes of the table, the type and the link are sent, however many others there are.
func TestRoutes(t *testing.T) {
	t.Parallel()
	for family, six := range map[byte]bool{unix.AF_INET: false, unix.AF_INET6: true} {
		ns := netnstest.New(t)
		c := rtnetlink.New(ns, rtnetlink.Default)
		t.Cleanup(c.Close)
		list := func(table uint32) (dsts []netip.Prefix) {
			require.NoError(t, c.Routes(family, rtnetlink.Routes{Table: table, Type: unix.RTN_LOCAL, Link: 1}, func(dst netip.Prefix) bool {
				dsts = append(dsts, dst)
				return true
			}))
			return dsts
		}
		assert.Empty(t, list(133), "there is no such table")
		rttest.Fill{Routes: 2, Table: 133, Local: true, IPv6: six}.Make(t, ns)
		want := map[bool][]netip.Prefix{
			false: {netip.MustParsePrefix("10.120.0.0/32"), netip.MustParsePrefix("10.120.0.1/32")},
			true:  {netip.MustParsePrefix("fd00:78::/128"), netip.MustParsePrefix("fd00:78::1/128")},
		}[six]
		before, _ := c.Read()
		assert.ElementsMatch(t, want, list(133))
		routes := 200_000
		if six {
			routes = 20_000 // which the kernel takes longer to make
		}
		rttest.Fill{Routes: routes, Table: unix.RT_TABLE_MAIN, IPv6: six}.Make(t, ns)
		rttest.Fill{Routes: 5000, Table: 133, IPv6: six}.Make(t, ns) // some in ours, of another type
		assert.ElementsMatch(t, want, list(133))
		after, _ := c.Read()
		assert.LessOrEqual(t, after-before, 4, "messages")
	}
}

// TestRules: a rule is found among 50,000, and the reading ends with it.
func TestRules(t *testing.T) { // not parallel: allocations are counted
	ns := netnstest.New(t)
	rttest.Fill{Rules: 50_000, Mark: 7}.Make(t, ns)
	c := rtnetlink.New(ns, rtnetlink.Default)
	defer c.Close()
	var last rtnetlink.Rule
	n := 0
	require.NoError(t, c.Rules(unix.AF_INET, func(r rtnetlink.Rule) bool { last, n = r, n+1; return true }))
	assert.Equal(t, 50_003, n)
	assert.Equal(t, rtnetlink.Rule{Priority: 32767, Table: unix.RT_TABLE_DEFAULT}, last)
	messages, bytes := c.Read()
	assert.Equal(t, n, messages)
	assert.Less(t, bytes, rtnetlink.Default.Bytes)

	require.NoError(t, c.Rules(unix.AF_INET, func(r rtnetlink.Rule) bool { return r.Mark != 7 }))
	after, _ := c.Read()
	assert.Equal(t, 2, after-messages, "local's, and the first")
	require.NoError(t, c.Rules(unix.AF_INET6, func(rtnetlink.Rule) bool { return true }), "the socket is as new")

	assert.Less(t, testing.AllocsPerRun(1, func() {
		_ = c.Rules(unix.AF_INET, func(rtnetlink.Rule) bool { return true })
	}), 1000.0, "nothing is kept, nor made for each")
}

// TestLimits: each bound ends a list with an error that says so, and the next question is answered.
func TestLimits(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	rttest.Fill{Addrs: 500}.Make(t, ns)
	rttest.Fill{Rules: 500}.Make(t, ns)
	rttest.Fill{Routes: 500, Table: 133, Local: true}.Make(t, ns)
	for name, limit := range map[string]rtnetlink.Limit{
		"messages": {Messages: 400, Bytes: 1 << 20, Time: time.Hour},
		"bytes":    {Messages: 1 << 20, Bytes: 16 << 10, Time: time.Hour},
		"time":     {Messages: 1 << 20, Bytes: 1 << 20, Time: -time.Hour},
	} {
		c := rtnetlink.New(ns, limit)
		for range 2 {
			before, _ := c.Read()
			require.ErrorIs(t, c.Addrs(unix.AF_INET, 0, func(netip.Addr) bool { return true }), nfnetlink.ErrLong, name)
			require.ErrorIs(t, c.Rules(unix.AF_INET, func(rtnetlink.Rule) bool { return true }), nfnetlink.ErrLong, name)
			require.ErrorIs(t, c.Routes(unix.AF_INET, rtnetlink.Routes{Table: 133, Type: unix.RTN_LOCAL, Link: 1}, func(netip.Prefix) bool { return true }),
				nfnetlink.ErrLong, name)
			_, err := c.Has([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
			require.ErrorIs(t, err, nfnetlink.ErrLong, name)
			after, _ := c.Read()
			assert.LessOrEqual(t, after-before, 4*401, name)
		}
		if name != "time" { // what is wanted may come before the bound
			h, err := c.Has([]netip.Addr{netip.MustParseAddr("10.20.0.3")})
			require.NoError(t, err, name)
			assert.Empty(t, h.Missing, name)
		}
		c.Close()
	}
}

// TestHas: own addresses count, of both families and of each link, and not the other end's.
func TestHas(t *testing.T) {
	t.Parallel()
	w := netnstest.NewWorld(t, netnstest.Options{})
	c := rtnetlink.New(w.Pod, rtnetlink.Default)
	defer c.Close()
	addr := netip.MustParseAddr
	h, err := c.Has([]netip.Addr{addr("10.244.1.5"), addr("fd00:10:244::5"), addr("::ffff:10.244.1.5"), addr("127.0.0.1"), addr("192.0.2.9"), addr("fe80::9%eth0")})
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{addr("192.0.2.9"), addr("fe80::9%eth0")}, h.Missing)
	h, err = c.Has(nil)
	require.NoError(t, err)
	assert.Empty(t, h)
}
