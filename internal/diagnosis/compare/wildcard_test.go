package compare_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestWildcardInterfaces: two programs whose interface matches overlap are told apart, by an interface that one of them alone takes.
func TestWildcardInterfaces(t *testing.T) {
	t.Parallel()
	program := func(matches ...string) ruleset.Ruleset {
		text := "*nat\n:PREROUTING ACCEPT [0:0]\n"
		for _, m := range matches {
			text += "-A PREROUTING " + m + " -p tcp -j REDIRECT --to-ports 15001\n"
		}
		rs, err := parse(text+"COMMIT\n", ruleset.Ruleset{})
		require.NoError(t, err)
		return rs
	}
	for _, c := range []struct {
		a, b ruleset.Ruleset
		same bool
	}{
		{program("-i br+"), program("-i br+"), true},
		{program("-i br+", "-i br0"), program("-i br+"), true},
		{program("-i br+", "-i bridge+"), program("-i br+"), true},
		{program("-i br+"), program("-i br0"), false},
		{program("-i br+"), program("-i br"), false},
		{program("-i br+"), program("-i bridge+"), false},
		{program("-i br0+"), program("-i br0"), false},
		{program("-i e+"), program("-i eth+"), false},
		{program("! -i br+"), program("! -i br0"), false},
		{program("-i abcdefghijklmn+"), program("-i abcdefghijklmn"), false},
	} {
		report, err := compare.Compare(t.Context(), c.a, c.b, compare.Options{})
		require.NoError(t, err)
		assert.Equal(t, c.same, len(report.Differences) == 0, "%s\n%s", c.a, c.b)
	}
}
