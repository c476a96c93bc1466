package bypass_test

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestForwardedByNFTables: a rule of nftables' ingress that hands on what arrives at the pod's interface may take it past all rules, which cannot be
// told; one that hands on nothing, or at another hook, may not.
func TestForwardedByNFTables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("ip"), netnstest.Binary("nft"))
	const interfaces = "ip link add eth0 type veth peer name tap0; ip link set eth0 up; ip link set tap0 up; ip addr add 10.244.1.5/24 dev eth0; nft add table netdev x; "
	const ingress = "nft 'add chain netdev x in { type filter hook ingress device eth0 priority 0; }'; "
	forwarded := []dialect.Bypass{{Code: dialect.BypassSandboxed, Interface: "eth0", HandedTo: "a rule of nftables' ingress (fwd)", Unsure: true}}
	for name, test := range map[string]struct {
		script string
		want   []dialect.Bypass
	}{
		"for all":       {ingress + "nft add rule netdev x in fwd to tap0", forwarded},
		"in a chain":    {ingress + "nft add chain netdev x more; nft add rule netdev x in tcp dport 80 jump more; nft add rule netdev x more fwd to tap0", forwarded},
		"interfaces":    {"nft 'add chain netdev x in { type filter hook ingress devices = { eth0, lo } priority 0; }'; nft add rule netdev x in fwd to tap0", forwarded},
		"none":          {ingress + "nft add rule netdev x in tcp dport 80 drop", nil},
		"another table": {ingress + "nft add table netdev y; nft add chain netdev y c; nft add rule netdev y c fwd to tap0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			out, err := exec.Command("nsenter", "--net="+ns.Path(), "sh", "-ec", interfaces+test.script).CombinedOutput()
			require.NoError(t, err, "%s", out)
			got, err := bypass.Live(ns, []netip.Addr{netip.MustParseAddr("10.244.1.5")})
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}
