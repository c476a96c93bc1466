package compare_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// saved is what iptables-save prints of a pod whose rules name n ports, users, groups and destinations each.
func saved(t *testing.T, n int) ruleset.Ruleset {
	t.Helper()
	var b strings.Builder
	b.WriteString("*nat\n:OUTPUT ACCEPT [0:0]\n")
	for i := range n {
		fmt.Fprintf(&b, "-A OUTPUT -p tcp -d 10.%d.%d.0/24 --dport %d -m owner --uid-owner %d -m owner --gid-owner %d -j RETURN\n", i/250, i%250, 1000+2*i, 2000+2*i, 3000+2*i)
	}
	b.WriteString("COMMIT\n")
	live, err := compare.Parse(b.String())
	require.NoError(t, err)
	rs, err := live.Ruleset(redirect.Default().MustRuleset())
	require.NoError(t, err)
	return rs
}

// TestCountIsWhatIsMade: packets are counted rightly before one is made.
func TestCountIsWhatIsMade(t *testing.T) {
	t.Parallel()
	r := redirect.Default()
	r.VirtualInterfaces = []string{"docker0"}
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
	for _, programs := range [][]ruleset.Ruleset{{{}}, {r.MustRuleset()}, {r.MustRuleset(), saved(t, 3)}} {
		for n := range len(addrs) + 1 {
			counted, made, err := compare.Count(addrs[:n], programs...)
			require.NoError(t, err)
			assert.Equal(t, made, counted)
		}
	}
}

// TestTooManyKinds: 64 KiB of a pod's own rules make no product of all values.
func TestTooManyKinds(t *testing.T) {
	var before, after runtime.MemStats
	rs := saved(t, 700) // 64 KiB of iptables-save
	runtime.ReadMemStats(&before)
	_, err := compare.Compare(t.Context(), rs, redirect.Default().MustRuleset(), compare.Options{})
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, compare.ErrMany)
	require.ErrorContains(t, err, "too many kinds of packets to compare, over 1000000: ipv4 destinations 709, sources ")
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
}

// TestComparisonEnds with the context, and at a number of differences.
func TestComparisonEnds(t *testing.T) {
	t.Parallel()
	ours, other := redirect.Default().MustRuleset(), saved(t, 12)
	report, err := compare.Compare(t.Context(), other, ours, compare.Options{})
	require.NoError(t, err)
	assert.True(t, report.More)
	assert.Len(t, report.Differences, 10_000)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	report, err = compare.Compare(ctx, other, ours, compare.Options{})
	require.ErrorIs(t, err, errEnough)
	assert.Zero(t, report.Packets)
}

var errEnough = errors.New("enough")
