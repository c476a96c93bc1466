package difftest_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestTextsAreRead: whatever can be rendered is read back from each of its texts
// as it was, and needs no change where it is in force.
func TestTextsAreRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := Cases(0).Draw(t, "case").Redirect
		b, err := json.Marshal(want)
		require.NoError(t, err)
		var got redirect.Redirect
		require.NoError(t, json.Unmarshal(b, &got))
		require.Equal(t, want.MustRuleset(), got.MustRuleset())
		require.Equal(t, want.MustRuleset(), want.Clone().MustRuleset())
		rs := want.MustRuleset()
		for _, f := range ruleset.Families {
			p := rs.Family(f)
			if p == nil {
				continue
			}
			saved, err := ruleset.Parse(f, p.String())
			require.NoError(t, err)
			require.Empty(t, p.Diff(saved), "%s", p)
			require.Empty(t, p.Transition(saved), "%s", p)
			commented, err := ruleset.Parse(f, p.Commented())
			require.NoError(t, err)
			require.Equal(t, saved, commented, "comments change the meaning")
		}
	})
}

// TestRecordsLoseNothing: the plugin's record of an attachment brings back the
// rules that were applied, policy routing and addresses included.
func TestRecordsLoseNothing(t *testing.T) {
	t.Parallel()
	store := attachment.Open(t.TempDir())
	rapid.Check(t, func(t *rapid.T) {
		want := attachment.Record{
			ID:    attachment.ID{Network: "k8s", ContainerID: "c0ffee", IfName: "eth0"},
			NetNS: attachment.NetNS{Path: "/var/run/netns/a", Dev: 4, Ino: 4026532000}, Pod: status.ID{Namespace: "shop", Name: "cart-0", UID: "u1"},
			Selected: true, Reason: "selected", Dialect: "istio", By: "ADD", Time: time.Unix(1700000000, 0).UTC(),
		}
		want.Applied("nftables", Cases(0).Draw(t, "case").Redirect.MustRuleset(), nil)
		require.NoError(t, store.Write(want))
		got, err := store.Read(want.ID)
		require.NoError(t, err)
		require.True(t, want.Rules.Equal(got.Rules), "%s\n\n%s", want.Rules, got.Rules)
		require.Equal(t, want.Rules.String(), got.Rules.String())
		require.Equal(t, apply.NFT(want.Rules), apply.NFT(got.Rules))
		require.Equal(t, want.Rules.Owner(), got.Rules.Owner())
		for _, f := range ruleset.Families {
			if p := want.Rules.Family(f); p != nil {
				require.Equal(t, p.IPCommands(), got.Rules.Family(f).IPCommands())
			}
		}
		want.Rules, got.Rules, want.Version = ruleset.Ruleset{}, ruleset.Ruleset{}, attachment.Format
		require.Equal(t, want, got)
	})
}
