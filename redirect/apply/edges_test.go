//go:build linux

package apply_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestOthersLeadToOurChains: a chain of ours to which a chain of others jumps is
// emptied when it is no longer wanted; the jump is theirs, and stays.
func TestOthersLeadToOurChains(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		b := choose(t, ns, v)
		mustApply(t, b, dual().MustRuleset())
		put(t, ns, string(v)+"-restore", "*nat\n:OTHER - [0:0]\n-A OTHER -p tcp -j ISTIO_OUTPUT_DNS\nCOMMIT\n")
		mustApply(t, b, istio.DefaultRedirect().MustRuleset())
		assert.Contains(t, state(t, ns), "-A OTHER -p tcp -j ISTIO_OUTPUT_DNS")
		assert.NotContains(t, state(t, ns), "-A ISTIO_OUTPUT_DNS")
		diffs, err := b.Check(t.Context(), istio.DefaultRedirect().MustRuleset())
		require.NoError(t, err)
		assert.Empty(t, diffs)
		require.False(t, mustApply(t, b, istio.DefaultRedirect().MustRuleset()).Changed)
		require.NoError(t, b.Remove(t.Context(), istio.DefaultRedirect().Names.Owner()))
		assert.Contains(t, state(t, ns), "-A OTHER -p tcp -j ISTIO_OUTPUT_DNS")
	})
}

// TestIPv6Unknown: where it cannot be told whether IPv6 is there, nothing is
// applied, rather than IPv4 alone.
func TestIPv6Unknown(t *testing.T) {
	apply.ObscureIPv6(t)
	for _, v := range append([]ruleset.Backend{ruleset.BackendNftables}, variants...) {
		ns := netnstest.New(t)
		before := state(t, ns)
		_, err := choose(t, ns, v).Apply(t.Context(), dual().MustRuleset())
		require.ErrorContains(t, err, "look for IPv6", v)
		assert.Equal(t, before, state(t, ns))
	}
}
