package netnstest_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The nat half of Istio's program with default settings, written by hand: the world has to give the fates that were
// recorded under the original.
const istioOutbound = `*nat
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p tcp --dport 15020 -j RETURN
-A ISTIO_OUTPUT -p udp --dport 15020 -j RETURN
-A ISTIO_OUTPUT -o lo -s 127.0.0.6/32 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001
`

const istioInbound = `:ISTIO_INBOUND - [0:0]
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -m multiport --dports 15020,15021,15090 -j RETURN
-A ISTIO_INBOUND -p tcp -j REDIRECT --to-ports 15006
`

const istioTPROXY = `*mangle
:ISTIO_INBOUND - [0:0]
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A PREROUTING -p tcp -m mark --mark 1337 -j CONNMARK --save-mark
-A ISTIO_INBOUND -m mark --mark 1337 -j RETURN
-A ISTIO_INBOUND -s 127.0.0.6/32 -i lo -j RETURN
-A ISTIO_INBOUND -i lo -m mark ! --mark 1338 -j RETURN
-A ISTIO_INBOUND -p tcp -m multiport --dports 15020,15021,15090 -j RETURN
-A ISTIO_INBOUND -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j MARK --set-mark 1337
-A ISTIO_INBOUND -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ISTIO_INBOUND ! -d 127.0.0.1/32 -p tcp -j TPROXY --on-port 15006 --tproxy-mark 1337
-A OUTPUT -o lo -p tcp -m mark --mark 1337 -j RETURN
-A OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1337 -j MARK --set-mark 1338
-A OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m owner --gid-owner 1337 -j MARK --set-mark 1338
-A OUTPUT -p tcp -m connmark --mark 1337 -j CONNMARK --restore-mark
COMMIT
`

func TestWorldGivesTheRecordedFates(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("ip"))
	for name, rules := range map[string]string{
		"sel-plain":    istioOutbound + istioInbound + "COMMIT\n",
		"tproxy-plain": istioOutbound + "COMMIT\n" + istioTPROXY,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := netnstest.NewWorld(t, netnstest.Options{})
			for _, route := range []string{"rule add fwmark 1337 lookup 133", "route add local default dev lo table 133"} {
				cmd := exec.CommandContext(t.Context(), "ip", strings.Fields(route)...)
				require.NoError(t, w.Pod.Run(cmd), route)
			}
			restore(t, w, "iptables-nft-restore", rules)
			want, got := recording(t)[name].Fates, w.Run(netnstest.Probes(netnstest.Plan{}))
			require.Len(t, want, len(got))
			for probe, fate := range want {
				assert.Equal(t, fate, got[probe], probe)
			}
		})
	}
}
