//go:build linux

package apply_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
)

// TestFullNamespace: what a pod has put into its own namespace, of each kind, is not read without
// end. Nothing is said of what cannot be told, and nothing is changed.
func TestFullNamespace(t *testing.T) {
	many := func(format string) string {
		var text strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&text, format+"\n", i)
		}
		return text.String()
	}
	rs := dual().MustRuleset()
	ours := "istio"
	for name, tc := range map[string]struct {
		backends []apply.Name
		program  []string
		input    string
	}{
		"tables":       {everyBackend[:2], []string{"nft", "-f", "-"}, many("add table inet t%d")},
		"chains":       {[]apply.Name{apply.IptablesNFT, apply.Nftables}, []string{"nft", "-f", "-"}, "add table ip nat\n" + many("add chain ip nat c%d")},
		"rules":        {[]apply.Name{apply.IptablesNFT}, []string{"iptables-nft-restore", "--noflush"}, "*nat\n" + many("-A POSTROUTING -p tcp --dport %d -j ACCEPT") + "COMMIT\n"},
		"elements":     {[]apply.Name{apply.IptablesNFT}, []string{"nft", "-f", "-"}, "add table ip nat\nadd set ip nat s { type mark; }\n" + many("add element ip nat s { %d }")},
		"our elements": {everyBackend[2:], []string{"nft", "-f", "-"}, "add set inet " + ours + " s { type mark; }\n" + many("add element inet "+ours+" s { %d }")},
		"legacy rules": {[]apply.Name{apply.IptablesLegacy}, []string{"iptables-legacy-restore", "--noflush"}, "*nat\n" + many("-A POSTROUTING -p tcp --dport %d -j ACCEPT") + "COMMIT\n"},
	} {
		for _, backend := range tc.backends {
			t.Run(name+"/"+string(backend), func(t *testing.T) {
				ns := netnstest.New(t)
				mustApply(t, choose(t, ns, backend), rs)
				cmd := exec.CommandContext(t.Context(), tc.program[0], tc.program[1:]...)
				cmd.Stdin = strings.NewReader(tc.input)
				require.NoError(t, ns.Run(cmd))
				b := choose(t, ns, backend)
				_, err := b.Check(t.Context(), rs)
				require.NoError(t, err, "within the bound")
				apply.SetListLimit(t, 64<<10)
				_, err = b.Check(t.Context(), rs)
				require.ErrorContains(t, err, "than are read")
				_, err = b.Apply(t.Context(), tproxy().MustRuleset())
				require.ErrorContains(t, err, "than are read")
				apply.SetListLimit(t, 32<<20)
				diffs, err := b.Check(t.Context(), rs)
				require.NoError(t, err)
				assert.Empty(t, diffs, "as before")
			})
		}
	}
}

// TestCannotTellIsNotNo: where it cannot be said what is in a namespace, it is not taken for empty.
func TestCannotTellIsNotNo(t *testing.T) {
	rs := dual().MustRuleset()
	t.Run("legacy tables", func(t *testing.T) {
		ns := netnstest.New(t)
		mustApply(t, choose(t, ns, apply.IptablesLegacy), rs)
		b := choose(t, ns, apply.Nftables)
		apply.ObscureLegacy(t)
		_, err := b.Apply(t.Context(), rs)
		require.ErrorContains(t, err, "list xtables tables")
		_, err = b.Check(t.Context(), rs)
		require.ErrorContains(t, err, "list xtables tables")
		require.ErrorContains(t, b.Remove(t.Context(), rs.Owner()), "list xtables tables")
	})
	t.Run("nftables' tables", func(t *testing.T) {
		ns := netnstest.New(t)
		mustApply(t, choose(t, ns, apply.Nftables), rs)
		b := choose(t, ns, apply.IptablesLegacy)
		apply.SetListLimit(t, 1)
		_, err := b.Apply(t.Context(), rs)
		require.ErrorContains(t, err, "list nftables tables")
		_, err = apply.Choose(t.Context(), ns, apply.Options{Runner: ns.Sandbox()})
		require.ErrorContains(t, err, "list nftables tables")
	})
}
