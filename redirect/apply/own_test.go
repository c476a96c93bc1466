//go:build linux

package apply_test

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// fatesOf are those of single probes, by their names.
func fatesOf(t *testing.T, w *netnstest.World, want map[string]string) {
	t.Helper()
	var probes []netnstest.Probe
	for name := range want {
		p, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		probes = append(probes, p)
	}
	assert.Equal(t, want, w.Run(probes))
}

var ownBackends = []ruleset.Backend{ruleset.BackendNftables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}

// TestOwnRulesInTheKernel: rules of the mesh's own are in force before ours, after them and instead of them. What is live of them is compared, a
// change is seen and put right, and they go with ours.
func TestOwnRulesInTheKernel(t *testing.T) {
	t.Parallel()
	udp := func(port, to uint16) ruleset.Rule {
		return ruleset.Rule{
			Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(port)), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: to},
		}
	}
	r := redirect.Default()
	r.Outbound.ExcludePorts = redirect.Ports(3306, 3307)
	drop := func(port uint16) []ruleset.Rule {
		return []ruleset.Rule{{Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(port)), Target: ruleset.Target{Action: ruleset.ActionDrop}}}
	}
	r.Own = []ruleset.Chain{
		{Table: ruleset.NAT, Name: "MESH_OUTPUT_FIRST", Rules: []ruleset.Rule{
			udp(8125, 15053), {Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_SPECIAL"}},
		}},
		{Table: ruleset.NAT, Name: "MESH_SPECIAL", Rules: []ruleset.Rule{{
			Proto: ruleset.TCP, Dst: ruleset.MatchPrefix(netip.MustParsePrefix("172.16.3.3/32")), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 15090},
		}}},
		{Table: ruleset.NAT, Name: "MESH_OUTPUT_LAST", Rules: []ruleset.Rule{{
			Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(3306)), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 15020},
		}}},
		{Table: ruleset.Mangle, Name: "MESH_OUTPUT_FIRST", Rules: []ruleset.Rule{{
			Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(5353)), Target: ruleset.Target{Action: ruleset.ActionDrop},
		}}},
		{Table: ruleset.Mangle, Name: "MESH_INPUT_FIRST", Rules: drop(9443)},
		{Table: ruleset.Mangle, Name: "MESH_FORWARD", Rules: drop(9999)},
		{Table: ruleset.Mangle, Name: "MESH_POSTROUTING_LAST", Rules: drop(3307)},
		{Table: ruleset.NAT, Name: "MESH_INPUT", Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionReturn}}}},
		{Table: ruleset.NAT, Name: "MESH_POSTROUTING_FIRST", Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionReturn}}}},
		{Table: ruleset.NAT, Name: "MESH_PREROUTING", Rules: []ruleset.Rule{{
			Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(8080)), Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_IN_REDIRECT"},
		}}},
	}
	rs := r.MustRuleset()
	for _, name := range ownBackends {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"), netnstest.Binary("nft"))
			w := netnstest.NewWorld(t, netnstest.Options{})
			b := choose(t, w.Pod, name)
			_, err := b.Apply(t.Context(), rs)
			require.NoError(t, err)
			inForce := map[string]string{
				"pod tcp 1000/1000 -> 10.96.5.5:80":        "proxy:15001 orig=10.96.5.5:80",
				"pod tcp 1000/1000 -> 172.16.3.3:443":      "proxy:15090 orig=172.16.3.3:443",
				"pod tcp 1000/1000 -> 198.51.100.10:3306":  "proxy:15020 orig=198.51.100.10:3306",
				"pod tcp 1000/1000 -> [2001:db8::10]:3306": "proxy:15020 orig=[2001:db8::10]:3306",
				"pod udp 1000/1000 -> 198.51.100.10:8125":  "proxy:15053/udp",
				"pod udp 1000/1000 -> [2001:db8::10]:8125": "proxy:15053/udp",
				"out tcp 0/0 -> 10.244.1.5:8080":           "proxy:15006 orig=10.244.1.5:8080",
				"out tcp 0/0 -> 10.244.1.5:22":             "app:22 orig=10.244.1.5:22",
				"out tcp 0/0 -> 10.244.1.5:9443":           "timeout",
				"pod tcp 1000/1000 -> 198.51.100.10:3307":  "timeout",
			}
			fatesOf(t, w, inForce)
			same := func() {
				t.Helper()
				diffs, err := b.Check(t.Context(), rs)
				require.NoError(t, err)
				assert.Empty(t, diffs)
				live, err := apply.Live(t.Context(), w.Pod, apply.Options{Runner: w.Pod.Sandbox()}, rs)
				require.NoError(t, err)
				read, err := live.Ruleset(rs)
				require.NoError(t, err)
				report, err := compare.Compare(t.Context(), rs, read, compare.Options{PodAddrs: []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}})
				require.NoError(t, err)
				assert.Empty(t, report.Differences)
			}
			same()

			for _, damage := range []string{"lost", "added", "not entered"} {
				command := map[string]string{
					"lost":        string(name) + " -t nat -D MESH_OUTPUT_FIRST -p udp --dport 8125 -j REDIRECT --to-ports 15053",
					"added":       string(name) + " -t nat -I MESH_SPECIAL 1 -p tcp -j ACCEPT",
					"not entered": string(name) + " -t mangle -D INPUT -j MESH_INPUT_FIRST",
				}[damage]
				if name == ruleset.BackendNftables {
					command = map[string]string{"lost": "nft flush chain inet mesh nat/MESH_OUTPUT_FIRST", "added": "nft insert rule inet mesh nat/MESH_SPECIAL accept", "not entered": "nft flush chain inet mesh mangle/INPUT"}[damage]
				}
				require.NoError(t, w.Pod.Run(exec.Command("sh", "-c", command)))
				diffs, err := b.Check(t.Context(), rs)
				require.NoError(t, err)
				assert.NotEmpty(t, ruleset.Certain(diffs), damage)
				result, err := b.Apply(t.Context(), rs)
				require.NoError(t, err)
				assert.True(t, result.Changed)
				same()
			}
			fatesOf(t, w, inForce)

			// Without them the rest stays, and what is removed is removed with them.
			without := r
			without.Own = nil
			_, err = b.Apply(t.Context(), without.MustRuleset())
			require.NoError(t, err)
			fatesOf(t, w, map[string]string{
				"pod tcp 1000/1000 -> 172.16.3.3:443": "proxy:15001 orig=172.16.3.3:443",
				"out tcp 0/0 -> 10.244.1.5:22":        "proxy:15006 orig=10.244.1.5:22",
				"out tcp 0/0 -> 10.244.1.5:9443":      "proxy:15006 orig=10.244.1.5:9443",
			})
			_, err = b.Apply(t.Context(), rs)
			require.NoError(t, err)
			require.NoError(t, b.Remove(t.Context(), rs.Owner()))
			live, err := apply.Live(t.Context(), w.Pod, apply.Options{Runner: w.Pod.Sandbox()}, rs)
			require.NoError(t, err)
			assert.Empty(t, live)
		})
	}
}

// TestIncludedInterfacesInTheKernel: what comes or goes by another interface than those that are included is left alone, in both families, and
// calls of the proxy to its own pod are inbound as ever.
func TestIncludedInterfacesInTheKernel(t *testing.T) {
	t.Parallel()
	r := redirect.Default()
	r.IncludeInterfaces = []string{"eth0"}
	rs := r.MustRuleset()
	for _, name := range ownBackends {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
			w := netnstest.NewWorld(t, netnstest.Options{})
			b := choose(t, w.Pod, name)
			_, err := b.Apply(t.Context(), rs)
			require.NoError(t, err)
			fatesOf(t, w, map[string]string{
				"pod tcp 1000/1000 -> 10.96.5.5:80":                  "proxy:15001 orig=10.96.5.5:80",
				"pod tcp 1000/1000 -> [fd00:96::5]:80":               "proxy:15001 orig=[fd00:96::5]:80",
				"pod tcp 1000/1000 -> 192.168.77.1:6379":             "out:6379 orig=192.168.77.1:6379",
				"pod tcp 1337/1337 -> 10.244.1.5:8080":               "proxy:15006 orig=10.244.1.5:8080",
				"out tcp 0/0 -> 10.244.1.5:8080":                     "proxy:15006 orig=10.244.1.5:8080",
				"out tcp 0/0 -> [fd00:10:244::5]:8080":               "proxy:15006 orig=[fd00:10:244::5]:8080",
				"out tcp 0/0 -> 192.168.77.2:8080 from 192.168.77.1": "app:8080 orig=192.168.77.2:8080",
			})
			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			two := r
			two.IncludeInterfaces = []string{"eth0", "net1"}
			diffs, err = b.Check(t.Context(), two.MustRuleset())
			require.NoError(t, err)
			assert.NotEmpty(t, diffs)
			_, err = b.Apply(t.Context(), two.MustRuleset())
			require.NoError(t, err)
			fatesOf(t, w, map[string]string{
				"pod tcp 1000/1000 -> 192.168.77.1:6379":             "proxy:15001 orig=192.168.77.1:6379",
				"out tcp 0/0 -> 192.168.77.2:8080 from 192.168.77.1": "proxy:15006 orig=192.168.77.2:8080",
			})
		})
	}
}
