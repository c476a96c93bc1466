//go:build linux

package apply_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestHandOverFails: whichever visit to the namespace fails, one of the two programs' rules are in force: those of the other
// where they were, also when they are handed over again.
func TestHandOverFails(t *testing.T) {
	r := redirect.Default()
	r.Names.OtherTables = []string{"other-nat"}
	rs := r.MustRuleset()
	layout := ruleset.Layout{Tables: map[ruleset.Table]string{ruleset.NAT: "other-nat"}}
	for _, again := range []bool{false, true} {
		failures := 0
		for visit := 1; ; visit++ {
			ns := netnstest.New(t)
			n := apply.NewNFTables(ns)
			_, err := n.Apply(t.Context(), rs)
			require.NoError(t, err)
			handOver := func(ns apply.Namespace) error {
				_, err := apply.HandOver(t.Context(), ns, rs, layout, apply.Options{Backend: ruleset.BackendNftables})
				return err
			}
			if again {
				require.NoError(t, handOver(ns))
			}
			before := nft(t, ns, "", "list", "ruleset")
			if err = handOver(&visits{Namespace: ns, fails: visit}); err == nil {
				break
			}
			failures++
			require.ErrorIs(t, err, errVisit)
			if now := nft(t, ns, "", "list", "ruleset"); now != before {
				assert.Contains(t, now, "other-nat", "visit %d, again: %v", visit, again)
				assert.NotContains(t, now, "table inet mesh", "visit %d, again: %v", visit, again)
			}
		}
		assert.Greater(t, failures, 1)
	}
}
