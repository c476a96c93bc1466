//go:build linux

package apply_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink/rttest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestFullNamespace: what a pod has put into its own namespace, of each kind, is not read without
// end. Nothing is said of what cannot be told, and nothing is changed.
func TestFullNamespace(t *testing.T) {
	many := func(format string) string {
		var text strings.Builder
		for i := range 900 { // fewer than others may have
			fmt.Fprintf(&text, format+"\n", i)
		}
		return text.String()
	}
	rs := dual().MustRuleset()
	ours := "istio"
	for name, tc := range map[string]struct {
		backends []ruleset.Backend
		program  []string
		input    string
	}{
		"tables":       {everyBackend[:2], []string{"nft", "-f", "-"}, many("add table inet t%d")},
		"chains":       {[]ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendNftables}, []string{"nft", "-f", "-"}, "add table ip nat\n" + many("add chain ip nat c%d")},
		"rules":        {[]ruleset.Backend{ruleset.BackendIptablesNFT}, []string{"iptables-nft-restore", "--noflush"}, "*nat\n" + many("-A POSTROUTING -p tcp --dport %d -j ACCEPT") + "COMMIT\n"},
		"elements":     {[]ruleset.Backend{ruleset.BackendIptablesNFT}, []string{"nft", "-f", "-"}, "add table ip nat\nadd set ip nat s { type mark; }\n" + many("add element ip nat s { %d }")},
		"our elements": {everyBackend[2:], []string{"nft", "-f", "-"}, "add set inet " + ours + " s { type mark; }\n" + many("add element inet "+ours+" s { %d }")},
		"legacy rules": {[]ruleset.Backend{ruleset.BackendIptablesLegacy}, []string{"iptables-legacy-restore", "--noflush"}, "*nat\n" + many("-A POSTROUTING -p tcp --dport %d -j ACCEPT") + "COMMIT\n"},
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
				apply.SetListLimit(t, 32<<10)
				_, err = b.Check(t.Context(), rs)
				require.ErrorContains(t, err, "than is read")
				_, err = b.Apply(t.Context(), tproxy().MustRuleset())
				require.ErrorContains(t, err, "than is read")
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
		mustApply(t, choose(t, ns, ruleset.BackendIptablesLegacy), rs)
		b := choose(t, ns, ruleset.BackendNftables)
		apply.ObscureLegacy(t)
		_, err := b.Apply(t.Context(), rs)
		require.ErrorContains(t, err, "list xtables tables")
		_, err = b.Check(t.Context(), rs)
		require.ErrorContains(t, err, "list xtables tables")
		require.ErrorContains(t, b.Remove(t.Context(), rs.Owner()), "list xtables tables")
	})
	t.Run("nftables' tables", func(t *testing.T) {
		ns := netnstest.New(t)
		mustApply(t, choose(t, ns, ruleset.BackendNftables), rs)
		b := choose(t, ns, ruleset.BackendIptablesLegacy)
		apply.SetListLimit(t, 1)
		_, err := b.Apply(t.Context(), rs)
		require.ErrorContains(t, err, "list nftables tables")
		_, err = apply.Choose(t.Context(), ns, apply.Options{Runner: ns.Sandbox()})
		require.ErrorContains(t, err, "list nftables tables")
	})
}

// TestFullRouting: a look at the mesh's own routing reads neither the pod's routes nor more than a bound of its policy rules, finds what
// is there, and takes nothing of the pod's for it.
func TestFullRouting(t *testing.T) {
	for name, r := range map[string]redirect.Redirect{"kernel's priority": tproxy(), "own priority": byMark()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, rs := netnstest.New(t), r.MustRuleset()
			b := choose(t, ns, ruleset.BackendNftables)
			mustApply(t, b, rs)
			routing := *rs.IPv4.Routing
			rttest.Fill{Routes: 200_000, Table: unix.RT_TABLE_MAIN, Rules: 50_000, Mark: 77}.Make(t, ns)
			rttest.Fill{Routes: 20_000, Table: routing.Table}.Make(t, ns)
			rttest.Fill{Routes: 20_000, Table: routing.Table, IPv6: true}.Make(t, ns)
			messages, bytes, diffs, err := apply.ReadOfRouting(ns, rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			assert.Less(t, messages, 50_100, "the rules, and nothing of the routes")
			assert.Less(t, bytes, 5<<20)
			assert.False(t, mustApply(t, b, rs).Changed)

			// What looks like ours is not taken for it.
			shell(t, ns, fmt.Sprintf("ip route del local default table %d && ip rule del fwmark %#x table %d || ip rule del fwmark %#x/%#x table %[3]d",
				routing.Table, routing.Mark, routing.Table, routing.Mark, routing.Mask))
			rttest.Fill{Routes: 3, Table: routing.Table, Local: true}.Make(t, ns)
			shell(t, ns, fmt.Sprintf("ip rule add fwmark %#x iif nowhere table %d", routing.Mark, routing.Table))
			_, _, diffs, err = apply.ReadOfRouting(ns, rs)
			require.NoError(t, err)
			assert.Len(t, diffs, 2, "the route and the rule")
			assert.True(t, mustApply(t, b, rs).Changed)
			_, _, diffs, err = apply.ReadOfRouting(ns, rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)

			// Beyond the bound it cannot be told, and is the pod's fault.
			rttest.Fill{Rules: 20_000, Mark: 78, Last: 10_000}.Make(t, ns)
			shell(t, ns, fmt.Sprintf("ip rule del fwmark %#x table %d || ip rule del fwmark %#x/%#x table %[2]d; true", routing.Mark, routing.Table, routing.Mark, routing.Mask))
			messages, _, _, err = apply.ReadOfRouting(ns, rs)
			if routing.Priority == 0 {
				require.ErrorIs(t, err, nfnetlink.ErrLong)
				_, err = b.Check(t.Context(), rs)
				require.ErrorContains(t, err, "more than is read of one network namespace")
			}
			assert.LessOrEqual(t, messages, 1<<16+10)
			require.NoError(t, b.Remove(t.Context(), rs.Owner()))
		})
	}
}
