//go:build linux

package apply_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink/rttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

// TestKernel: what a namespace has of IPv6 is told by its interfaces, not by the addresses that they have now.
func TestKernel(t *testing.T) {
	off := func(t *testing.T, ns *netnsexec.NetNS, which, value string) {
		t.Helper()
		require.NoError(t, ns.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte(value), 0)
		}))
	}
	is := func(t *testing.T, ns *netnsexec.NetNS, want redirect.Presence) {
		t.Helper()
		got, err := apply.Kernel(ns)
		require.NoError(t, err)
		assert.Equal(t, redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: want}, got)
	}
	w := netnstest.NewWorld(t, netnstest.Options{})
	is(t, w.Pod, redirect.PresenceUsable)
	off(t, w.Pod, "eth0", "1")
	off(t, w.Pod, "virt0", "1")
	is(t, w.Pod, redirect.PresenceUsable) // by net1
	off(t, w.Pod, "net1", "1")
	is(t, w.Pod, redirect.PresenceUsable) // by an interface that is yet to come
	off(t, w.Pod, "default", "1")
	is(t, w.Pod, redirect.PresenceOff)
	off(t, w.Pod, "lo", "0") // leads nowhere
	is(t, w.Pod, redirect.PresenceOff)
	off(t, w.Pod, "all", "0")
	is(t, w.Pod, redirect.PresenceUsable)
	off(t, w.Pod, "all", "1")
	is(t, w.Pod, redirect.PresenceOff)
	is(t, w.Out, redirect.PresenceUsable) // its neighbour's is its own

	empty := netnstest.New(t)
	off(t, empty, "default", "0")
	is(t, empty, redirect.PresenceUsable) // of interfaces that are yet to come
	off(t, empty, "default", "1")
	is(t, empty, redirect.PresenceOff)

	apply.ObscureSysctls(t)
	_, err := apply.Kernel(w.Pod)
	require.ErrorContains(t, err, "look where IPv6 is switched off")
	apply.ObscureIPv6(t)
	_, err = apply.Kernel(w.Pod)
	require.ErrorContains(t, err, "look for address families: look for IPv6")
	apply.HideIPv6(t)
	is(t, w.Pod, redirect.PresenceAbsent)
}

// TestKernelOfManyInterfaces: what a look costs does not grow by files with the interfaces of a pod, and is bounded. Not parallel: allocations are
// counted.
func TestKernelOfManyInterfaces(t *testing.T) {
	ns := netnstest.New(t)
	sysctl(t, ns, "ipv6/conf/all/disable_ipv6", "1")
	sysctl(t, ns, "ipv6/conf/default/disable_ipv6", "1")
	rttest.Fill{Links: 1500}.Make(t, ns)
	presence := func() redirect.Presence {
		k, err := apply.Kernel(ns)
		require.NoError(t, err)
		return k.IPv6
	}
	assert.Equal(t, redirect.PresenceOff, presence())
	assert.Less(t, testing.AllocsPerRun(3, func() { presence() }), 1500.0, "a file for each interface would take several")
	messages, err := apply.ReadOfInterfaces(ns)
	require.NoError(t, err)
	assert.LessOrEqual(t, messages, 1501)
	sysctl(t, ns, "ipv6/conf/fill1499/disable_ipv6", "0")
	assert.Equal(t, redirect.PresenceUsable, presence(), "the last one counts too")
	sysctl(t, ns, "ipv6/conf/fill0/disable_ipv6", "0")
	messages, err = apply.ReadOfInterfaces(ns)
	require.NoError(t, err)
	assert.LessOrEqual(t, messages, 2, "the first is enough")

	sysctl(t, ns, "ipv6/conf/all/disable_ipv6", "1")
	apply.FewInterfaces(t, 1000)
	_, err = apply.Kernel(ns)
	require.ErrorIs(t, err, nfnetlink.ErrLong, "what was not read may have IPv6")
	sysctl(t, ns, "ipv6/conf/default/disable_ipv6", "0")
	assert.Equal(t, redirect.PresenceUsable, presence(), "without looking at any")
}
