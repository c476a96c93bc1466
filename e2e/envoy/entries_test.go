package envoy

import (
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// untracked are rules that keep one leg of a proxied connection out of the pod's connection tracking table: an experiment, which
// nothing of ours makes.
var untracked = map[string]string{
	"none": "",
	// Between the proxy and its application, which Istio's rules leave alone by the proxy's address.
	"to the application": `
		chain out { type filter hook output priority raw
			oif lo ip saddr 127.0.0.6 notrack
			oif lo ip daddr 127.0.0.6 notrack
		}`,
	// Between the proxy and the server outside, whose port one has to know: the proxy's answers to clients, which it sends from the same
	// interface, need the table, and so does what comes in but answers.
	"to the server": `
		chain out { type filter hook output priority raw
			oif eth0 meta skuid 1337 tcp dport 8004 notrack
		}
		chain in { type filter hook prerouting priority raw
			iif eth0 tcp sport 8004 notrack
		}`,
}

// TestEntries: a connection through the proxy takes two entries in the pod's table, whichever way it goes and whichever way it comes,
// by each backend; and what it takes without a leg. One that passes the proxy by takes one.
func TestEntries(t *testing.T) {
	out, in := netip.AddrPortFrom(serviceIP[0], portHalf), netip.AddrPortFrom(podIP[0], portHalf)
	for _, c := range []struct {
		backend           ruleset.Backend
		mode, untracked   string
		outbound, inbound int
	}{
		{ruleset.BackendNftables, "REDIRECT", "none", 2, 2},
		{ruleset.BackendIptablesNFT, "REDIRECT", "none", 2, 2},
		{ruleset.BackendIptablesLegacy, "REDIRECT", "none", 2, 2},
		{ruleset.BackendNftables, "TPROXY", "none", 2, 2},
		{ruleset.BackendIptablesNFT, "TPROXY", "none", 2, 2},
		{ruleset.BackendIptablesLegacy, "TPROXY", "none", 2, 2},
		{ruleset.BackendNftables, "REDIRECT", "to the application", 2, 1},
		{ruleset.BackendNftables, "REDIRECT", "to the server", 1, 2},
	} {
		t.Run(string(c.backend)+", "+c.mode+", untracked "+c.untracked, func(t *testing.T) {
			p := newPod(t, c.backend, istioPod(c.mode), istioShape(c.mode))
			if rules := untracked[c.untracked]; rules != "" {
				said, err := proctest.Command(p.world.Pod.Path(), "nft", "add table inet experiment {"+rules+"\n}").CombinedOutput()
				require.NoError(t, err, "%s", said)
			}
			assert.Equal(t, c.outbound, p.entries(t, p.fromApp, out), "outbound")
			assert.Equal(t, c.inbound, p.entries(t, p.fromOut, in), "inbound")
			assert.Equal(t, 1, p.entries(t, p.fromApp, netip.AddrPortFrom(excluded[0], portHalf)), "outbound, past the proxy")
			assert.Equal(t, 1, p.entries(t, p.fromOut, netip.AddrPortFrom(podIP[0], portExcluded)), "inbound, past the proxy")
		})
	}
}

// entries returns how many entries a connection takes.
func (p *pod) entries(t *testing.T, c caller, dst netip.AddrPort) int {
	t.Helper()
	const connections = 20
	before := p.conntrack(t)
	for range connections {
		if dst.Port() == portExcluded {
			http1(t, c, dst, nil)
			continue
		}
		conn := c.connect(t, dst) // Envoy keeps connections of HTTP for others, and makes one for each of bytes
		_, err := conn.Write(make([]byte, greeting))
		require.NoError(t, err)
		_, err = io.ReadAll(conn)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	took := p.conntrack(t) - before
	t.Logf("%d connections to %s took %d entries", connections, dst, took)
	return (took + connections/2) / connections
}
