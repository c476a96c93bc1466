package difftest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestAddrType: packets meet rules about local addresses as the tracer says, and
// each backend finds its own rules again.
func TestAddrType(t *testing.T) {
	var rs ruleset.Ruleset
	for _, f := range ruleset.Families {
		p := &ruleset.FamilyRuleset{Family: f, Owner: ruleset.Ownership{Prefix: "MESH_"}}
		for _, c := range []struct {
			name  string
			rules []string
		}{
			{ruleset.Prerouting, []string{"-p tcp -m addrtype ! --src-type LOCAL --dst-type LOCAL -j MESH_IN"}},
			{ruleset.Output, []string{"-p tcp -m addrtype --src-type LOCAL ! --dst-type LOCAL -j MESH_OUT"}},
			{"MESH_IN", []string{"-p tcp -m tcp --dport 22 -j RETURN", "-p tcp -j REDIRECT --to-ports 15006"}},
			{"MESH_OUT", []string{"-m owner --uid-owner 1337 -j RETURN", "-p tcp -j REDIRECT --to-ports 15001"}},
		} {
			chain := ruleset.Chain{Table: ruleset.NAT, Name: c.name}
			for _, text := range c.rules {
				r, err := ruleset.ParseRule(f, text)
				require.NoError(t, err)
				assert.Equal(t, text, r.Text(f))
				chain.Rules = append(chain.Rules, r)
			}
			p.Chains = append(p.Chains, chain)
		}
		rs.Set(p)
	}
	assert.Contains(t, apply.NFT(rs), "fib saddr type != local fib daddr type local")
	options := netnstest.Options{}
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			w := netnstest.NewWorld(t, options)
			b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
			require.NoError(t, err)
			_, err = b.Apply(t.Context(), rs)
			require.NoError(t, err)
			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			redirected := map[string]bool{}
			fates := w.Run(netnstest.Probes(netnstest.Plan{}))
			for _, p := range netnstest.Probes(netnstest.Plan{}) {
				want, _, err := model(options).Fate(rs, p)
				require.NoError(t, err)
				assert.Equal(t, want, fates[p.String()], p)
				who, _, _ := strings.Cut(want, " ")
				redirected[who] = true
			}
			assert.Subset(t, redirected, map[string]bool{"proxy:15001": true, "proxy:15006": true, "app:8080": true})
		})
	}
}
