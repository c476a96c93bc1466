//go:build linux

package apply_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// podAddrs are the addresses of the test world's pod, its primary one first.
var podAddrs = []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}

const fates = "../../testdata/fates"

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

// podRules is what the plugin would apply to the pod of a case.
func podRules(t testing.TB, name string) (rs ruleset.Ruleset, o netnstest.Options, err error) {
	t.Helper()
	var pod corev1.Pod
	readJSON(t, filepath.Join(fates, "cases", name+".json"), &pod)
	d := istio.New("kube-system", "istio-system")
	if !d.Decide(&pod, nil).Selected {
		return rs, o, nil
	}
	built, err := d.Redirect(&pod, nil, podAddrs)
	if err != nil {
		return rs, o, err
	}
	o.ProxyUID, o.ProxyGID = built.Redirect.Proxy.UIDs[0], built.Redirect.Proxy.GIDs[0]
	rs, err = built.Redirect.Ruleset()
	return rs, o, err
}

// TestFates applies the rules of each recorded pod and sends the recorded
// packets: they end up where the reference implementation's do.
func TestFates(t *testing.T) {
	var expected map[string]struct {
		Exit  int
		Fates map[string]string
	}
	readJSON(t, filepath.Join(fates, "expected.json"), &expected)
	require.Len(t, expected, 24)
	for _, backend := range everyBackend {
		for name, want := range expected {
			t.Run(string(backend)+"/"+name, func(t *testing.T) {
				t.Parallel()
				rs, options, err := podRules(t, name)
				if want.Exit != 0 {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				w := netnstest.NewWorld(t, options)
				b := choose(t, w.Pod, backend)
				if rs != (ruleset.Ruleset{}) { // else the mesh leaves the pod alone
					_, err = b.Apply(t.Context(), rs)
					require.NoError(t, err)
				}
				got := w.Run(netnstest.Probes(netnstest.Plan{}))
				require.Len(t, want.Fates, len(got))
				for probe, fate := range want.Fates {
					if isTunnelQuirk(name, probe, fate, got[probe]) {
						continue
					}
					assert.Equal(t, fate, got[probe], probe)
				}
			})
		}
	}
}

// TestStateOfAPod: what is said of how much of a pod is captured is what packets meet, by whatever settings.
func TestStateOfAPod(t *testing.T) {
	const traffic = "traffic.sidecar.istio.io/"
	noInbound := map[string]string{traffic + "includeInboundPorts": ""}
	nothing := map[string]string{traffic + "includeInboundPorts": "", traffic + "excludeOutboundIPRanges": "0.0.0.0/0,::/0"}
	for _, backend := range everyBackend {
		for code, annotations := range map[status.Code]map[string]string{"captured": nil, status.CodePartly: noInbound, status.CodeNothingCaptured: nothing} {
			t.Run(string(backend)+"/"+string(code), func(t *testing.T) {
				t.Parallel()
				var pod corev1.Pod
				readJSON(t, filepath.Join(fates, "cases", "fam-dual.json"), &pod)
				for key, value := range annotations {
					pod.Annotations[key] = value
				}
				plan, err := istio.New().Plan(dialect.Subject{Pod: &pod, Addrs: podAddrs}, dialect.Options{})
				require.NoError(t, err)
				_, got := plan.State()
				assert.Equal(t, code, got)
				w := netnstest.NewWorld(t, netnstest.Options{})
				_, err = choose(t, w.Pod, backend).Apply(t.Context(), plan.Ruleset)
				require.NoError(t, err)
				fates, said := w.Run(netnstest.Probes(netnstest.Plan{})), plan.BypassCodes()
				for probe, code := range map[string]dialect.BypassCode{
					"pod tcp 1000/1000 -> 198.51.100.10:443": dialect.BypassOutbound, "out tcp 0/0 -> 10.244.1.5:8080": dialect.BypassInbound,
				} {
					require.Contains(t, fates, probe)
					assert.Equal(t, !strings.HasPrefix(fates[probe], "proxy:"), slices.Contains(said, code), "%s: %s, said is %v", probe, fates[probe], said)
				}
			})
		}
	}
}

// isTunnelQuirk: with TPROXY the reference captures its own tunnel port, which
// the recordings' README says not to copy.
func isTunnelQuirk(name, probe, want, got string) bool {
	return strings.HasPrefix(name, "tproxy") && strings.Contains(probe, ":15008") &&
		strings.HasPrefix(want, "proxy:15006") && strings.HasPrefix(got, "proxy:15008")
}

func choose(t testing.TB, ns *netnsexec.NetNS, name ruleset.Backend) apply.Backend {
	t.Helper()
	b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: name, Runner: ns.Sandbox()})
	require.NoError(t, err)
	return b
}

// TestGuards: what a caller has made by mistake is applied to nothing, and no namespace is as it says.
func TestGuards(t *testing.T) {
	direct := redirect.Default().MustRuleset()
	direct.IPv4.Chain(ruleset.NAT, "OUTPUT").Rules[0] = ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 15001}}
	wrong := redirect.Default()
	wrong.Proxy.OutboundPort = 0
	nothing, err := wrong.Ruleset()
	require.Error(t, err)
	refused, err := istio.New().Plan(dialect.Subject{}, dialect.Options{})
	require.ErrorIs(t, err, selection.ErrNoPod)
	for _, backend := range everyBackend {
		ns := netnstest.New(t)
		before, b := state(t, ns), choose(t, ns, backend)
		for name, rs := range map[string]ruleset.Ruleset{
			"zero": {}, "of an error": nothing, "of a refused plan": refused.Ruleset, "hand-made": direct,
			"without owner": {IPv4: &ruleset.FamilyRuleset{Family: ruleset.IPv4}},
		} {
			want := rs.Validate()
			require.Error(t, want, name)
			_, err := b.Apply(t.Context(), rs)
			require.ErrorContains(t, err, want.Error(), "%s: %s", backend, name)
			_, err = b.Check(t.Context(), rs)
			require.ErrorContains(t, err, want.Error(), "%s: %s", backend, name)
			_, err = apply.HandOver(t.Context(), ns, rs, ruleset.Layout{}, apply.Options{Backend: backend, Runner: ns.Sandbox()})
			require.ErrorContains(t, err, want.Error(), "%s: %s", backend, name)
		}
		assert.Equal(t, before, state(t, ns), backend)
	}
}
