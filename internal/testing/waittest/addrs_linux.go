package waittest

import (
	"testing"

	"github.com/meshcni/meshcni/internal/kernel/netready"
	"github.com/meshcni/meshcni/netnsexec"
)

// Addrs returns once the network namespace's addresses are usable, as [netready.Addrs] says.
func Addrs(tb testing.TB, ns *netnsexec.NetNS) {
	tb.Helper()
	Eventually(tb, "the addresses of "+ns.Path()+" are usable", func() error { return ns.Do(netready.Addrs) })
}
