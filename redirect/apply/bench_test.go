//go:build linux

package apply_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

func BenchmarkIPTables(b *testing.B) {
	rs, _, err := podRules(b, "fam-dual")
	require.NoError(b, err)
	for _, name := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		b.Run(string(name)+"/fresh", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				ns := netnstest.New(b)
				b.StartTimer()
				_, err := choose(b, ns, name).Apply(b.Context(), rs)
				require.NoError(b, err)
			}
		})
		b.Run(string(name)+"/again", func(b *testing.B) {
			ns := netnstest.New(b)
			for b.Loop() {
				_, err := choose(b, ns, name).Apply(b.Context(), rs)
				require.NoError(b, err)
			}
		})
	}
	b.Run("look", func(b *testing.B) {
		ns := netnstest.New(b)
		for b.Loop() {
			_, err := apply.Choose(b.Context(), ns, apply.Options{})
			require.NoError(b, err)
		}
	})
}
