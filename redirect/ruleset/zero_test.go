package ruleset_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestZeroMatches: a match that is not set matches everything, is no text, and makes no difference.
func TestZeroMatches(t *testing.T) {
	t.Parallel()
	assert.True(t, ruleset.OwnerMatch{}.IsZero())
	assert.True(t, ruleset.OwnerMatch{Not: true}.IsZero())
	r := ruleset.Rule{Owner: []ruleset.OwnerMatch{{}, ruleset.OwnerIs(ruleset.OwnerUID, 0)}, Target: ruleset.Target{Action: ruleset.ActionReturn}}
	assert.Equal(t, "-m owner --uid-owner 0 -j RETURN", r.Text(ruleset.IPv4))
	other := r
	other.Owner = r.Owner[1:]
	assert.True(t, r.Equal(other))
	other.Owner = nil
	assert.False(t, r.Equal(other))
}
