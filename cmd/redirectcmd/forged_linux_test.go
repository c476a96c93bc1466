package redirectcmd_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/nfttest"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestForgedByTheKernel: a pod that may change its own rules gives chains and comments whatever names it likes. They make no line of what is
// printed, and no rule.
func TestForgedByTheKernel(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	const evil = "x\nFORGED: ok\r\x1b[2KFORGED\tFORGED\u2028FORGED\u0085FORGED"
	const rules = "x\n-A OUTPUT -j FORGED\nFORGED: ok\r\x1b[2K\u2028FORGED"
	pod := filepath.Join("..", "..", "..", "testdata", "fates", "cases", "out-exclude-ports.json")
	for _, backend := range []string{"iptables-nft", "iptables-legacy", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			w := netnstest.NewWorld(t, netnstest.Options{})
			at := []string{"--netns", w.Pod.Path()}
			got := call{}.run(t, append([]string{"apply", "-f", pod, "--backend", backend}, at...)...)
			require.Zero(t, got.code, got.errOut)
			if backend == "nftables" {
				in(t, w.Pod, "nft", "add table inet other")
				require.NoError(t, nfttest.Add(w.Pod, nfttest.Chain{Family: unix.NFPROTO_INET, Table: "other", Name: evil, Jumps: []string{""}}))
			} else {
				in(t, w.Pod, backend, "-t", "nat", "-A", "ISTIO_OUTPUT", "-m", "comment", "--comment", rules, "-j", "RETURN")
			}
			shown := func(args ...string) string {
				got := call{}.run(t, append(append(args, "-f", pod), at...)...)
				visibletest.Lines(t, strings.Join(args, " "), got.out)
				visibletest.Lines(t, strings.Join(args, " "), got.errOut)
				return got.out
			}
			assert.Contains(t, shown("show"), `x\n`)
			shown("check", "--backend", backend)
			json1 := call{}.run(t, append([]string{"show", "-o", "json", "-f", pod}, at...)...)
			require.Zero(t, json1.code, json1.errOut)
			var all []struct{ Chain, Rule string }
			require.NoError(t, json.Unmarshal([]byte(json1.out), &all))
			exact := 0
			for _, r := range all {
				assert.False(t, strings.HasPrefix(r.Rule, "-j FORGED"), "a rule of a comment")
				if r.Chain == evil || strings.Contains(r.Rule, rules) {
					exact++
				}
			}
			assert.Equal(t, 1, exact, "JSON is exact: %s", json1.out)
		})
	}
}
