package redirectcmd_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestRulesBeforeOurs: apply, check and show name the rule of somebody else's that keeps packets from ours, and say what they cannot tell.
func TestRulesBeforeOurs(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	ns := netnstest.New(t)
	pod := filepath.Join("..", "..", "..", "testdata", "fates", "cases", "fam-v4-default.json")
	run := func(command string, args ...string) said {
		return call{}.run(t, append([]string{command, "--netns", ns.Path(), "-f", pod, "--ip", "10.244.1.5", "--backend", "iptables-nft"}, args...)...)
	}
	in(t, ns, "iptables-nft", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT")
	got := run("apply")
	assert.Equal(t, 1, got.code)
	const rule = "nat/OUTPUT:1 (-p tcp -j ACCEPT)"
	assert.Contains(t, got.errOut, rule)
	got = run("check")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.out, rule)
	assert.Contains(t, got.errOut, "what others have beside them keeps packets from them")
	got = call{}.run(t, "show", "--netns", ns.Path(), "-f", pod, "--ip", "10.244.1.5")
	assert.Zero(t, got.code, got.errOut)
	assert.Contains(t, got.out, rule)

	in(t, ns, "iptables-nft", "-t", "nat", "-R", "OUTPUT", "1", "-m", "statistic", "--mode", "nth", "--every", "9", "--packet", "0", "-j", "ACCEPT")
	for _, command := range []string{"apply", "check"} {
		got = run(command)
		require.Zero(t, got.code, got.errOut)
		assert.Contains(t, got.out, "cannot tell", command)
		assert.NotContains(t, got.out, "as wanted", command)
	}
	in(t, ns, "iptables-nft", "-t", "nat", "-D", "OUTPUT", "1")
	got = run("check")
	require.Zero(t, got.code, got.out)
	assert.Contains(t, got.out, "the live rules are as wanted (iptables-nft)")
}
