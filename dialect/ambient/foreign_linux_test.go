package ambient_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestRulesOfOthers: with rules of somebody else after the mesh's in the same chains, a packet ends where it does under the
// rules of Istio's agent. What these let pass they let pass for good, and what they are not about goes on.
func TestRulesOfOthers(t *testing.T) {
	const foreign = "*nat\n-A PREROUTING -p tcp -m multiport --dports 80,8080 -j REDIRECT --to-ports 15090\n" +
		"-A OUTPUT -p tcp -m multiport --dports 80,8080 -j REDIRECT --to-ports 15090\nCOMMIT\n"
	tests := []struct {
		name     string
		fromOut  bool
		from, to string
		mark     uint32
		want     string
	}{
		{"a probe", true, "169.254.7.127", "10.244.1.5:8080", 0, "app:8080 orig=10.244.1.5:8080"},
		{"a client", true, "", "10.244.1.5:8080", 0, "proxy:15006 orig=10.244.1.5:8080"},
		{"a client over IPv6", true, "", "[fd00:10:244::5]:8080", 0, "proxy:15006 orig=[fd00:10:244::5]:8080"},
		{"application to the outside", false, "", "10.96.5.5:80", 0, "proxy:15001 orig=10.96.5.5:80"},
		{"application to its own pod", false, "", "10.244.1.5:8080", 0, "app:8080 orig=10.244.1.5:8080"},
		{"application to its own pod over IPv6", false, "", "[fd00:10:244::5]:8080", 0, "app:8080 orig=[fd00:10:244::5]:8080"},
		{"application to localhost", false, "", "127.0.0.1:8080", 0, "proxy:15090 orig=127.0.0.1:8080"},
		{"proxy to the application", false, "", "10.244.1.5:8080", ambient.ProxyMark, "app:8080 orig=10.244.1.5:8080"},
		{"proxy to the outside", false, "", "10.96.5.5:80", ambient.ProxyMark, "proxy:15090 orig=10.96.5.5:80"},
		{"marked as a reply", false, "", "10.244.1.5:8080", 273, "app:8080 orig=10.244.1.5:8080"},
	}
	eachProgram(t, []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}, func(t *testing.T, backend ruleset.Backend, w *netnstest.World) {
		for _, f := range ruleset.Families {
			restore(t, w.Pod, backend, f, foreign)
		}
		show(t, w.Out, "addr", "add", "169.254.7.127/32", "dev", "lo")
		for _, tt := range tests {
			from := w.Pod
			if tt.fromOut {
				from = w.Out
			}
			assert.Equal(t, tt.want, ask(t, from, tt.from, tt.to, tt.mark), tt.name)
		}
	})
}

// TestLocalhostFromOutside: what comes in for localhost is not captured, as under the rules of Istio's agent. Only a pod with
// route_localnet takes it.
func TestLocalhostFromOutside(t *testing.T) {
	eachProgram(t, dialecttest.Backends, func(t *testing.T, _ ruleset.Backend, w *netnstest.World) {
		require.NoError(t, w.Pod.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0)
		}))
		require.NoError(t, w.Out.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/pod0/route_localnet", []byte("1"), 0)
		}))
		show(t, w.Out, "rule", "add", "pref", "0", "to", "127.0.0.1", "dport", "8080", "lookup", "200")
		show(t, w.Out, "route", "add", "127.0.0.1", "via", "10.244.1.5", "dev", "pod0", "src", "10.244.1.1", "table", "200")
		show(t, w.Out, "rule", "add", "pref", "1", "lookup", "local")
		show(t, w.Out, "rule", "del", "pref", "0", "lookup", "local")
		assert.Equal(t, "app:8080 orig=127.0.0.1:8080", ask(t, w.Out, "", "127.0.0.1:8080", 0))
	})
}

// eachProgram runs a test for each backend in a world with the rules of Istio's agent, and in one with ours.
func eachProgram(t *testing.T, backends []ruleset.Backend, test func(*testing.T, ruleset.Backend, *netnstest.World)) {
	t.Helper()
	for _, backend := range backends {
		t.Run("Istio's agent, "+string(backend), func(t *testing.T) {
			w := netnstest.NewWorld(t, netnstest.Options{})
			enrol(t, w.Pod, backend, settings{dns: true})
			test(t, backend, w)
		})
		t.Run("ours, "+string(backend), func(t *testing.T) { test(t, backend, captured(t, backend, nil)) })
	}
}
