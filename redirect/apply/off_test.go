//go:build linux

package apply_test

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// withFixtures are programs that need something of lo besides their rules.
func withFixtures() map[string]ruleset.Ruleset {
	address := dual()
	address.Loopback = redirect.LoopbackCapture
	all := map[string]ruleset.Ruleset{"address": address.MustRuleset(), "routing": tproxy().MustRuleset()}
	for _, rs := range all {
		rs.IPv6.LoopbackAddrs = []netip.Addr{netip.MustParseAddr("::6")}
		rs.IPv6.Owner.LoopbackAddrs, rs.IPv4.Owner.LoopbackAddrs = rs.IPv6.LoopbackAddrs, rs.IPv6.LoopbackAddrs
	}
	return all
}

func sysctl(t testing.TB, ns *netnsexec.NetNS, file, value string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+file, []byte(value), 0) }))
}

// TestIPv6SwitchedOff: where a sysctl has switched IPv6 off, rules of both
// families are in force, what lo cannot be given is told, and nothing differs. Once
// it is on, what is missing is reported, and made.
func TestIPv6SwitchedOff(t *testing.T) {
	for _, name := range everyBackend {
		for what, rs := range withFixtures() {
			for _, link := range []string{"all", "lo"} {
				t.Run(string(name)+"/"+what+"/"+link, func(t *testing.T) {
					t.Parallel()
					ns := netnstest.New(t)
					before := state(t, ns)
					sysctl(t, ns, "ipv6/conf/"+link+"/disable_ipv6", "1")
					b := choose(t, ns, name)
					result := mustApply(t, b, rs)
					assert.True(t, result.Changed)
					require.NotEmpty(t, result.Unusable)
					for _, u := range result.Unusable {
						assert.Equal(t, ruleset.IPv6, u.Family)
						assert.Contains(t, u.String(), "switched off on lo")
					}
					assert.Contains(t, result.Unusable[0].What, "::6/128 dev lo")
					same := func() {
						t.Helper()
						diffs, err := b.Check(t.Context(), rs)
						require.NoError(t, err)
						assert.Empty(t, diffs)
						assert.False(t, mustApply(t, b, rs).Changed)
					}
					same()
					// A rule of the family that goes missing is missed, off or not.
					diffs, err := b.Check(t.Context(), rs.Owner().EmptyRuleset())
					require.NoError(t, err)
					assert.Contains(t, differing(diffs), "ipv6")

					sysctl(t, ns, "ipv6/conf/"+link+"/disable_ipv6", "0")
					diffs, err = b.Check(t.Context(), rs)
					require.NoError(t, err)
					require.Len(t, diffs, len(result.Unusable))
					for _, d := range diffs {
						assert.Equal(t, "routing", d.Table)
						assert.Equal(t, ruleset.KindMissing, d.Kind)
					}
					result = mustApply(t, b, rs)
					assert.True(t, result.Changed)
					assert.Empty(t, result.Unusable)
					same()

					// Off again takes all of it away, which is no difference either.
					sysctl(t, ns, "ipv6/conf/"+link+"/disable_ipv6", "1")
					same()
					require.NoError(t, b.Remove(t.Context(), rs.Owner()))
					sysctl(t, ns, "ipv6/conf/"+link+"/disable_ipv6", "0")
					assert.Equal(t, before, state(t, ns))
				})
			}
		}
	}
}

func differing(diffs []ruleset.Difference) (text string) {
	for _, d := range diffs {
		text += d.String() + "\n"
	}
	return text
}

// TestLoDown: what goes on lo does not depend on who brings it up, and when.
func TestLoDown(t *testing.T) {
	for _, name := range everyBackend {
		for what, rs := range withFixtures() {
			t.Run(string(name)+"/"+what, func(t *testing.T) {
				t.Parallel()
				for _, when := range []string{"never", "meanwhile", "after"} {
					ns := netnstest.New(t)
					shell(t, ns, "ip link set lo down")
					started, done, raised := make(chan struct{}), make(chan struct{}), make(chan error, 1)
					go func() { // the runtime
						switch when {
						case "never":
							raised <- nil
							return
						case "meanwhile":
							<-started
						case "after":
							<-done
						}
						raised <- ns.Run(exec.Command("ip", "link", "set", "lo", "up"))
					}()
					b := choose(t, ns, name)
					close(started)
					result := mustApply(t, b, rs)
					close(done)
					require.NoError(t, <-raised)
					assert.Empty(t, result.Unusable, when)
					diffs, err := b.Check(t.Context(), rs)
					require.NoError(t, err, when)
					assert.Empty(t, diffs, when)
					assert.Contains(t, shell(t, ns, "ip -o link show lo"), "LOOPBACK,UP", when)
					require.NoError(t, b.Remove(t.Context(), rs.Owner()), when)
				}
			})
		}
	}
}

// TestLoDownFailure: a failure after lo was brought up leaves it up, and nothing else.
func TestLoDownFailure(t *testing.T) {
	ns := netnstest.New(t)
	before := state(t, ns)
	shell(t, ns, "ip link set lo down")
	runner := &failing{Runner: ns, program: "ip6tables-nft-restore", times: 1}
	b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendIptablesNFT, Runner: runner})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), tproxy().MustRuleset())
	require.Error(t, err)
	assert.Equal(t, before, state(t, ns))
}

// TestFatesWithoutLo: where IPv6 is off on lo alone, what comes in by IPv6 is captured
// and what would be captured on its way out fails; none of it passes by the proxy.
func TestFatesWithoutLo(t *testing.T) {
	for _, name := range everyBackend {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			w := netnstest.NewWorld(t, netnstest.Options{})
			sysctl(t, w.Pod, "ipv6/conf/lo/disable_ipv6", "1")
			mustApply(t, choose(t, w.Pod, name), dual().MustRuleset())
			var probes []netnstest.Probe
			for _, p := range []string{
				"out tcp 0/0 -> [fd00:10:244::5]:8080", "pod tcp 1337/1337 -> [fd00:96::5]:80",
				"pod tcp 1000/1000 -> [fd00:96::5]:80", "pod udp 1000/1000 -> [fd00:96::10]:53", "pod tcp 1000/1000 -> 10.96.5.5:80",
			} {
				probe, err := netnstest.ParseProbe(p)
				require.NoError(t, err)
				probes = append(probes, probe)
			}
			got := w.Run(probes)
			assert.Contains(t, got[probes[0].String()], "proxy:15006", "in")
			assert.Contains(t, got[probes[1].String()], "out:80", "the proxy's own")
			for _, p := range probes[2:4] {
				assert.NotEmpty(t, got[p.String()])
				assert.NotContains(t, got[p.String()], "out:", "%s", p)
			}
			assert.Contains(t, got[probes[4].String()], "proxy:15001", "IPv4 as ever")
		})
	}
}
