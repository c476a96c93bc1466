package ruleset_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// allocated is how many bytes a function takes from the heap, freed ones included.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// long is a program of as many rules as a pod can ask for, of which no two join.
func long(f ruleset.Family, n int) *ruleset.FamilyRuleset {
	p := &ruleset.FamilyRuleset{Family: f, Owner: ruleset.Ownership{Prefix: "MESH_"}}
	c := ruleset.Chain{Table: ruleset.NAT, Name: "MESH_OUTPUT"}
	for i := range n {
		id := uint32(i) //nolint:gosec // small
		c.Rules = append(c.Rules, ruleset.Rule{
			Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(uint16(i)), ruleset.Port(uint16(i+2))), //nolint:gosec // small
			Owner: []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerUID, id)}, Target: ruleset.Target{Action: ruleset.ActionReturn},
		})
	}
	p.Chains = []ruleset.Chain{c}
	return p
}

// TestLongProgramsMerge: what both families say is said once, each of many sets
// has a name of its own, and that takes no table of all pairs.
func TestLongProgramsMerge(t *testing.T) {
	const n = 5000
	rs := ruleset.Ruleset{IPv4: long(ruleset.IPv4, n), IPv6: long(ruleset.IPv6, n)}
	rs.IPv6.Chains[0].Rules = slices.Insert(rs.IPv6.Chains[0].Rules, 100, ruleset.Rule{
		Dst: ruleset.MatchPrefix(netip.MustParsePrefix("fd00::/8")), Target: ruleset.Target{Action: ruleset.ActionReturn},
	})
	var table *nft.Table
	bytes := allocated(func() { table = nft.Lower(rs) })
	assert.Len(t, table.Chains[0].Rules, n+1)
	require.Len(t, table.Sets, n)
	assert.Equal(t, "nat_output_dport", table.Sets[0].Name)
	assert.Equal(t, "nat_output_dport_2", table.Sets[1].Name)
	assert.Equal(t, fmt.Sprintf("nat_output_dport_%d", n), table.Sets[n-1].Name)
	assert.Less(t, bytes, uint64(64<<20))
}

// TestLongChainsDiffer: a live chain of any length is compared in memory that
// grows with it, and what is wrong is still found where it is.
func TestLongChainsDiffer(t *testing.T) {
	p := long(ruleset.IPv4, 5000)
	lines := strings.SplitAfter(p.String(), "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "-A") })
	live := slices.Clone(lines[:at+10])
	live = append(live, lines[at+11:at+4000]...) // the 11th is missing
	live = append(live, "-A MESH_OUTPUT -j ACCEPT\n")
	live = append(live, lines[at+4000:]...)
	saved, err := ruleset.Parse(ruleset.IPv4, strings.Join(live, ""))
	require.NoError(t, err)
	var diffs []ruleset.Difference
	bytes := allocated(func() { diffs = p.Diff(saved) })
	require.Len(t, diffs, 2)
	assert.Equal(t, ruleset.KindMissing, diffs[0].Kind)
	assert.Equal(t, 11, diffs[0].Position)
	assert.Equal(t, "ipv4 nat/MESH_OUTPUT:4000 unexpected: -j ACCEPT", diffs[1].String())
	assert.Less(t, bytes, uint64(32<<20))
}

// TestManyChains: a namespace may have as many chains as its pod likes.
func TestManyChains(t *testing.T) {
	const n = 20_000
	var b strings.Builder
	b.WriteString("*nat\n")
	for i := range n {
		fmt.Fprintf(&b, ":MESH_%d - [0:0]\n:theirs%d - [0:0]\n", i, i)
	}
	for i := range n {
		fmt.Fprintf(&b, "-A theirs%d -m comment --comment x -j MESH_%d\n", i, 2*i)
	}
	b.WriteString("COMMIT\n")
	saved, err := ruleset.Parse(ruleset.IPv4, b.String())
	require.NoError(t, err)
	p := &ruleset.FamilyRuleset{Family: ruleset.IPv4, Owner: ruleset.Ownership{Prefix: "MESH_"}}
	assert.Len(t, p.Diff(saved), n/2, "those that nobody else leads to")
	assert.Equal(t, n/2, strings.Count(p.Transition(saved), "-X MESH_"))
}
