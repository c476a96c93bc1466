package difftest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// What is generated is valid, within the tracer's model, and any answer is
// one that the world can give.
func TestCasesAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Cases(10).Draw(t, "case")
		require.NoError(t, c.Redirect.Validate())
		require.Len(t, c.Probes, 10)
		fates, err := c.Predict()
		require.NoError(t, err)
		require.Len(t, fates, 10)
		for probe, fate := range fates {
			p, err := netnstest.ParseProbe(probe)
			require.NoError(t, err)
			require.NotContains(t, fate, "unreachable", "the world has routes to all that is asked for")
			if p.Proto == "udp" {
				require.NotContains(t, fate, " orig=")
			}
			require.Contains(t, c.Explain(probe), fate)
		}
	})
}

// The generator reaches every kind of answer, so that agreement means something.
func TestCasesReachEverything(t *testing.T) {
	kinds := map[string]int{}
	for seed := range 300 {
		fates, err := Cases(40).Example(seed).Predict()
		require.NoError(t, err)
		for probe, fate := range fates {
			who, _, _ := strings.Cut(fate, " ")
			kinds[who]++
			if strings.HasPrefix(who, "app:") && strings.Contains(fate, "peer=198.51.100.10") && strings.Contains(probe, " mark ") {
				kinds["the application, from the client's address"]++
			}
		}
	}
	for _, who := range []string{
		"app:8080", "app:5000/udp", "out:80", "out:53/udp", "out:15008", "proxy:15001", "proxy:4140", "proxy:15006", "proxy:4143",
		"the application, from the client's address", "proxy:15008", "proxy:15053", "proxy:15053/udp", "proxy:8600/udp", "proxy:15020", "refused", "timeout",
	} {
		assert.NotZero(t, kinds[who], "%s: %v", who, kinds)
	}
}

func TestDisagreements(t *testing.T) {
	assert.Empty(t, Disagreements(map[string]Fates{"a": {"p": "x"}, "b": {"p": "x"}}))
	assert.Equal(t, []string{`p: "x" (a, c) or "y" (b)`, `q: "" (a, b) or "z" (c)`},
		Disagreements(map[string]Fates{"a": {"p": "x"}, "b": {"p": "y"}, "c": {"p": "x", "q": "z"}}))
}
