package redirect_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestKernelTakesWhatValidates: rules of valid Redirects, drawn by fixed seeds,
// are taken by the kernel and saved as the same rules, under both variants of
// iptables.
func TestKernelTakesWhatValidates(t *testing.T) {
	const samples = 12
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-"+variant+"-restore"))
			for seed := range samples {
				r := redirects().Example(seed)
				ns := netnstest.New(t)
				for _, f := range ruleset.Families {
					p := r.MustRuleset().Family(f)
					if p == nil {
						continue
					}
					iptables := "iptables-" + variant
					if f == ruleset.IPv6 {
						iptables = "ip6tables-" + variant
					}
					out, err := run(t, ns, p.String(), iptables+"-restore", "--noflush")
					require.NoError(t, err, "seed %d, %s: %s\n%s", seed, f, out, p)
					out, err = run(t, ns, "", iptables+"-save")
					require.NoError(t, err, out)
					saved, err := ruleset.Parse(f, out)
					require.NoError(t, err, out)
					assert.Empty(t, p.Diff(saved), "seed %d: %s\n%s", seed, r, out)
				}
			}
		})
	}
}

func run(t *testing.T, ns *netnsexec.NetNS, stdin, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Sandbox().Run(cmd)
	return out.String(), err
}
