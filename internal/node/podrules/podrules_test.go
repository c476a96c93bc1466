//go:build linux

package podrules_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// live answers what Check finds, one answer after another.
type live struct {
	apply.Backend

	finds [][]ruleset.Difference
}

var errRead = errors.New("cannot be read")

func (l *live) Check(context.Context, ruleset.Ruleset) ([]ruleset.Difference, error) {
	if len(l.finds) == 0 {
		return nil, errRead
	}
	found := l.finds[0]
	l.finds = l.finds[1:]
	return found, nil
}

// TestDifferences: any of the wanted rulesets will do, routing that the namespace never took is not missing, and what cannot be read is no
// answer.
func TestDifferences(t *testing.T) {
	rule := ruleset.Difference{Table: "nat", Rule: "-j ACCEPT"}
	route := ruleset.Difference{Table: ruleset.RoutingTable, Rule: "local default dev lo"}
	named := ruleset.Difference{Table: "nat", Rule: route.Rule}
	rs := redirect.Default().MustRuleset()
	check := func(unusable []string, wanted int, finds ...[]ruleset.Difference) []ruleset.Difference {
		t.Helper()
		diffs, err := podrules.Differences(t.Context(), &live{finds: finds}, unusable, make([]ruleset.Ruleset, wanted)...)
		require.NoError(t, err)
		return diffs
	}
	assert.Empty(t, check(nil, 1, nil))
	assert.Equal(t, []ruleset.Difference{rule}, check(nil, 2, []ruleset.Difference{rule}, []ruleset.Difference{route}), "those from the first")
	assert.Empty(t, check(nil, 2, []ruleset.Difference{rule}, nil), "the second is in force")
	assert.Equal(t, []ruleset.Difference{route}, check(nil, 1, []ruleset.Difference{route}))
	assert.Empty(t, check([]string{route.Rule}, 1, []ruleset.Difference{route}))
	assert.Equal(t, []ruleset.Difference{named}, check([]string{route.Rule}, 1, []ruleset.Difference{named, route}), "a rule of that text is no routing")
	_, err := podrules.Differences(t.Context(), &live{}, nil, rs)
	require.ErrorIs(t, err, errRead)
}

// TestNote: a record says what is in force, and is not written again for what it says already.
func TestNote(t *testing.T) {
	rs := redirect.Default().MustRuleset()
	applied := apply.Result{Backend: "nftables"}
	r := attachment.Record{Reason: "no-proxy"}
	assert.True(t, podrules.Note(&r, "istio", rs, applied))
	assert.Equal(t, []any{true, status.Code("selected"), "istio", ruleset.BackendNftables}, []any{r.Selected, r.Reason, r.Dialect, r.Backend})
	assert.True(t, r.Rules.Equal(rs))
	assert.False(t, podrules.Note(&r, "istio", rs, applied))
	assert.True(t, podrules.Note(&r, "kuma", rs, applied))
	applied.Backend = "iptables-nft"
	assert.True(t, podrules.Note(&r, "kuma", rs, applied))
}
