package rtnetlink_test

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestChanges makes and removes what iproute2 then shows, and says in the kernel's words what is there already or no more.
func TestChanges(t *testing.T) {
	ns := netnstest.New(t)
	c := rtnetlink.New(ns, rtnetlink.Default)
	defer c.Close()
	shown := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "ip", args...)
		var out []byte
		require.NoError(t, ns.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err }), "%s", out)
		return string(out)
	}
	shown("link", "set", "lo", "down")
	up, err := c.Up(1)
	require.NoError(t, err)
	assert.False(t, up)
	require.NoError(t, c.SetUp(1))
	up, err = c.Up(1)
	require.NoError(t, err)
	assert.True(t, up)
	_, err = c.Up(999)
	require.ErrorIs(t, err, unix.ENODEV)

	for _, x := range []struct {
		change func(rtnetlink.Change) error
		show   []string
		want   string
		gone   error
	}{
		{func(do rtnetlink.Change) error { return c.ChangeAddr(do, 1, netip.MustParseAddr("127.0.0.6")) }, []string{"-4", "addr"}, "inet 127.0.0.6/32 scope global lo", unix.EADDRNOTAVAIL},
		{func(do rtnetlink.Change) error { return c.ChangeAddr(do, 1, netip.MustParseAddr("::6")) }, []string{"-6", "addr"}, "inet6 ::6/128 scope global nodad", unix.EADDRNOTAVAIL},
		{func(do rtnetlink.Change) error { return c.ChangeLocal(do, unix.AF_INET, 133, 1) }, []string{"-4", "route", "show", "table", "133"}, "local default dev lo scope host", unix.ESRCH},
		{func(do rtnetlink.Change) error { return c.ChangeLocal(do, unix.AF_INET6, 1330, 1) }, []string{"-6", "route", "show", "table", "1330"}, "local default dev lo", unix.ESRCH},
		{func(do rtnetlink.Change) error {
			return c.ChangeRule(do, unix.AF_INET, rtnetlink.Rule{Priority: 9, Mark: 0x539, Mask: 0xfff, Table: 1330})
		}, []string{"-4", "rule"}, "9:	from all fwmark 0x539/0xfff lookup 1330", unix.ENOENT},
		{func(do rtnetlink.Change) error {
			return c.ChangeRule(do, unix.AF_INET6, rtnetlink.Rule{Priority: 8, Mark: 0x539, Table: 133})
		}, []string{"-6", "rule"}, "8:	from all fwmark 0x539 lookup 133", unix.ENOENT},
	} {
		require.NoError(t, x.change(rtnetlink.Add), x.want)
		assert.Contains(t, shown(x.show...), x.want)
		require.ErrorIs(t, x.change(rtnetlink.Add), unix.EEXIST, x.want)
		require.NoError(t, x.change(rtnetlink.Remove), x.want)
		assert.NotContains(t, shown(x.show...), x.want)
		require.ErrorIs(t, x.change(rtnetlink.Remove), x.gone, x.want)
	}
}
