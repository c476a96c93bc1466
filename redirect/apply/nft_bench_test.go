//go:build linux

package apply_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// BenchmarkNFTApply times the backend in a namespace that has no rules (fresh),
// that has others of ours (replace) and the same (again), and says how many
// times as long nft takes for the same text.
func BenchmarkNFTApply(b *testing.B) {
	rs, _, err := podRules(b, "fam-dual")
	require.NoError(b, err)
	other := redirect.Default()
	other.Names.ChainPrefix = rs.Owner().Prefix
	other.Outbound.ExcludePorts = redirect.Ports(3306, 6379)
	others := other.MustRuleset()

	run := func(name string, before func(*testing.B, *apply.NFTables)) {
		b.Run(name, func(b *testing.B) {
			var ours, theirs time.Duration
			for b.Loop() {
				b.StopTimer()
				ns, byText := netnstest.New(b), netnstest.New(b)
				for _, n := range []*apply.NFTables{apply.NewNFTables(ns), apply.NewNFTables(byText)} {
					before(b, n)
				}
				cmd := exec.Command("nft", "-f", "-")
				cmd.Stdin = strings.NewReader(apply.NFT(rs))
				start := time.Now()
				require.NoError(b, byText.Run(cmd))
				theirs += time.Since(start)
				b.StartTimer()
				start = time.Now()
				_, err := apply.NewNFTables(ns).Apply(b.Context(), rs)
				ours += time.Since(start)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(theirs)/float64(ours), "nft/ours")
			b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "ms/apply")
		})
	}
	apply1 := func(rs ruleset.Ruleset) func(*testing.B, *apply.NFTables) {
		return func(b *testing.B, n *apply.NFTables) {
			_, err := n.Apply(b.Context(), rs)
			require.NoError(b, err)
		}
	}
	run("fresh", func(*testing.B, *apply.NFTables) {})
	run("replace", apply1(others))
	run("again", apply1(rs))
	b.Run("check", func(b *testing.B) {
		n := apply.NewNFTables(netnstest.New(b))
		apply1(rs)(b, n)
		for b.Loop() {
			diffs, err := n.Check(b.Context(), rs)
			require.NoError(b, err)
			require.Empty(b, diffs)
		}
	})
	b.Run("text", func(b *testing.B) {
		for b.Loop() {
			_ = apply.NFT(rs)
		}
	})
}
