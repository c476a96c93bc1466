package compare_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// without takes rules out of a ruleset.
func without(rs ruleset.Ruleset, lost func(ruleset.Rule) bool) ruleset.Ruleset {
	var out ruleset.Ruleset
	for _, f := range ruleset.Families {
		p := *rs.Family(f)
		p.Chains = slices.Clone(p.Chains)
		for i, c := range p.Chains {
			p.Chains[i].Rules = slices.DeleteFunc(slices.Clone(c.Rules), lost)
		}
		out.Set(&p)
	}
	return out
}

// Rules that only answers need, or later connections, are in the way of no first packet.
func TestConnectionDifferences(t *testing.T) {
	sidecar := redirect.Default()
	sidecar.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	tproxy := redirect.Default()
	tproxy.Mode = redirect.ModeTProxy
	node := redirect.Default()
	node.Proxy.UIDs = nil
	node.Proxy.Mark = redirect.Mark{Value: 0x539, Mask: 0xfff}
	node.Names.InboundMark, node.Names.MarkMask = 0x111, 0xfff
	bypass := node
	bypass.Inbound.Ports = redirect.NoPorts()
	action := func(a ruleset.Action) func(ruleset.Rule) bool {
		return func(r ruleset.Rule) bool { return r.Target.Action == a }
	}
	listeners := []trace.Listener{
		{Port: 15053, UID: 1337, Onward: &trace.Onward{}}, {Port: 15006, UID: 1337, Transparent: true}, {Port: 15001, UID: 1337}, {UID: 1000, GID: 1000},
	}
	for name, tt := range map[string]struct {
		redirect redirect.Redirect
		lost     func(ruleset.Rule) bool
		again    bool
	}{
		"mark is not put on the connection":                 {node, action(ruleset.ActionSetConnMark), false},
		"nor where nothing inbound is captured":             {bypass, action(ruleset.ActionSetConnMark), false},
		"mark is not restored":                              {node, action(ruleset.ActionRestoreMark), false},
		"tproxy: mark is not saved":                         {tproxy, action(ruleset.ActionSaveMark), false},
		"answer to the application is not in its zone":      {sidecar, func(r ruleset.Rule) bool { return r.Comment == "proxy's answer to the application" }, false},
		"proxy's own question is in the application's zone": {sidecar, func(r ruleset.Rule) bool { return r.Comment == "proxy's question" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			whole := tt.redirect.MustRuleset()
			less := without(whole, tt.lost)
			report, err := compare.Compare(t.Context(), whole, less, compare.Options{PodAddrs: pod, Listeners: listeners})
			require.NoError(t, err)
			assert.Empty(t, report.Differences, "first packets do not tell")
			require.NotEmpty(t, report.ConnectionDifferences)
			assert.Greater(t, report.Connections, report.Packets/2)
			for _, d := range report.ConnectionDifferences {
				assert.Equal(t, trace.Established, d.A.Verdict, d.String())
				assert.Equal(t, tt.again, d.Again, d.String())
				assert.False(t, d.Better, d.String())
				if !tt.again {
					assert.NotEqual(t, trace.Established, d.B.Verdict, d.String())
				}
			}

			report, err = compare.Compare(t.Context(), less, whole, compare.Options{PodAddrs: pod, Listeners: listeners})
			require.NoError(t, err)
			for _, d := range report.ConnectionDifferences {
				assert.Equal(t, tt.again || d.A.Verdict == trace.AnswerLost && d.A.Server == d.B.Server, d.Better, d.String())
			}

			same, err := compare.Compare(t.Context(), whole, whole, compare.Options{PodAddrs: pod, Listeners: listeners})
			require.NoError(t, err)
			assert.Empty(t, same.ConnectionDifferences)
		})
	}
}

func TestReportJSON(t *testing.T) {
	a, b := redirect.Default().MustRuleset(), redirect.Default().MustRuleset()
	report, err := compare.Compare(t.Context(), a, b, compare.Options{PodAddrs: []netip.Addr{pod[0]}, Listeners: []trace.Listener{{UID: 1000}}})
	require.NoError(t, err)
	text, err := json.Marshal(report)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(text, &got))
	assert.ElementsMatch(t, []string{"packets", "differences", "connections"}, slices.Collect(maps.Keys(got)))
	assert.Equal(t, []any{}, got["differences"])
}

// TestRulesThatDropInvalid: two programs that differ in what they drop by its conntrack state alone are told apart.
func TestRulesThatDropInvalid(t *testing.T) {
	for _, mode := range []redirect.Mode{redirect.ModeRedirect, redirect.ModeTProxy} {
		r := redirect.Default()
		r.Mode, r.DropInvalid = mode, true
		drops := r.MustRuleset()
		r.DropInvalid = false
		passes := r.MustRuleset()
		for _, c := range []struct {
			a, b ruleset.Ruleset
			kind string
		}{{drops, passes, "missing"}, {passes, drops, "extra"}} {
			report := run(t, c.a, c.b)
			require.NotEmpty(t, report.Differences, mode)
			for _, d := range report.Differences {
				assert.Equal(t, ruleset.StateInvalid, d.Packet.State)
				if mode == redirect.ModeRedirect { // TPROXY takes them to the proxy
					assert.Equal(t, c.kind, d.Kind())
				}
				assert.Contains(t, d.String(), " state INVALID: ")
			}
			text, err := json.Marshal(report.Differences[0].Packet)
			require.NoError(t, err)
			var again trace.Packet
			require.NoError(t, json.Unmarshal(text, &again))
			assert.Equal(t, ruleset.StateInvalid, again.State)
		}
		assert.Empty(t, run(t, drops, drops).Differences)
	}
}

// TestZonesOfLookUps: two programs that differ in conntrack zones alone are told apart, whichever of them has the zones.
func TestZonesOfLookUps(t *testing.T) {
	r := redirect.Default()
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	zones := r.MustRuleset()
	r.DNS.OneZone = true
	none := r.MustRuleset()
	listeners := []trace.Listener{{Port: 15053, UID: 1337}, {Port: 15006, UID: 1337}, {Port: 15001, UID: 1337}, {UID: 1000, GID: 1000}}
	for _, c := range []struct {
		a, b   ruleset.Ruleset
		better bool
	}{{zones, none, false}, {none, zones, true}} {
		report, err := compare.Compare(t.Context(), c.a, c.b, compare.Options{PodAddrs: pod, Listeners: listeners})
		require.NoError(t, err)
		assert.Empty(t, report.Differences, "first packets do not tell")
		require.NotEmpty(t, report.ConnectionDifferences)
		for _, d := range report.ConnectionDifferences {
			assert.True(t, d.Again, d.String())
			assert.Equal(t, c.better, d.Better, d.String())
		}
	}
	for _, rs := range []ruleset.Ruleset{zones, none} {
		same, err := compare.Compare(t.Context(), rs, rs, compare.Options{PodAddrs: pod, Listeners: listeners})
		require.NoError(t, err)
		assert.Empty(t, same.ConnectionDifferences)
	}
}

// TestCompareEnds: the longest computation of this module ends with its context.
func TestCompareEnds(t *testing.T) {
	rs := redirect.Default().MustRuleset()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err := compare.Compare(ctx, rs, rs, compare.Options{})
	assert.ErrorContains(t, err, "compare rules: enough")
}
