package rulesettest_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/rulesettest"
)

func mesh(change func(*redirect.Redirect)) ruleset.Ruleset {
	r := redirect.Default()
	r.Inbound.ExcludePorts = redirect.Ports(22)
	if change != nil {
		change(&r)
	}
	return r.MustRuleset()
}

func TestFluent(t *testing.T) {
	rules := rulesettest.New(t, mesh(nil), "10.244.1.5", "fd00:10:244::5")
	rules.Out("10.0.0.1:443").UID(1000).RedirectedTo(15001)
	rules.Out("10.0.0.1:443").UID(1337).Passes()
	rules.Out("10.0.0.1:443").GID(1337).Passes()
	rules.Out("10.0.0.1:53").UDP().Passes()
	rules.Out("10.244.1.5:80").UID(1337).RedirectedTo(15006)
	rules.Out("10.244.1.5:80").UID(1000).Passes()
	rules.In("10.244.1.5:80").From("10.0.0.9").RedirectedTo(15006)
	rules.In("[fd00:10:244::5]:80").From("[fd00::9]:4000").By("net1").RedirectedTo(15006)
	rules.In("10.244.1.5:22").Passes()
	rules.In("10.244.1.5:80").State(ruleset.StateEstablished).Passes()

	tproxy := rulesettest.New(t, mesh(func(r *redirect.Redirect) {
		r.Mode, r.DropInvalid = redirect.ModeTProxy, true
	}), "10.244.1.5")
	result := tproxy.In("10.244.1.5:80").TProxiedTo(15006)
	assert.Equal(t, uint32(1337), result.Mark)
	tproxy.Out("10.244.1.5:80").Mark(1337).Passes()
	tproxy.In("10.244.1.5:80").State(ruleset.StateInvalid).Dropped()

	rs := ruleset.Ruleset{IPv4: &ruleset.Program{Family: ruleset.IPv4, Chains: []ruleset.Chain{{
		Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{mustRule(t, "-p udp -j DNAT --to-destination 127.0.0.1:8600")},
	}}}}
	rulesettest.New(t, rs).Out("10.0.0.1:53").UDP().RedirectedToAddr("127.0.0.1:8600")
}

func mustRule(t *testing.T, text string) ruleset.Rule {
	r, err := ruleset.ParseRule(ruleset.IPv4, text)
	require.NoError(t, err)
	return r
}

// A packet can begin several: each method returns a copy.
func TestPacketsAreValues(t *testing.T) {
	rules := rulesettest.New(t, mesh(nil))
	to := rules.Out("10.0.0.1:443")
	to.UID(1337).Passes()
	to.RedirectedTo(15001)
}

func TestTable(t *testing.T) {
	rulesettest.New(t, mesh(nil), "10.244.1.5").Table(`
		# from the application
		out tcp uid 1000 -> 10.0.0.1:443     => redirect 15001
		out tcp uid 1337 -> 10.0.0.1:443     => pass   # the proxy's own

		in  tcp from 10.0.0.9 -> 10.244.1.5:80  =>  redirect   15006
		in  tcp -> 10.244.1.5:22             => pass
	`)
}

// recorder stands in for a test, to see it fail.
type recorder struct{ messages []string }

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// failures runs f as a test would and returns what it reported.
func failures(f func(tb rulesettest.TB)) []string {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.messages
}

func TestFailureShowsTheWay(t *testing.T) {
	got := failures(func(tb rulesettest.TB) {
		rulesettest.New(tb, mesh(nil)).Out("10.0.0.1:443").UID(1337).RedirectedTo(15001)
	})
	require.Len(t, got, 1)
	assert.Equal(t, `out tcp uid 1337 gid 0 -> 10.0.0.1:443
  want: redirect 15001
  got:  pass: proxy to the outside: passes
        nat/OUTPUT:1                 -j MESH_OUTPUT
        nat/MESH_OUTPUT:3            -m owner --uid-owner 1337 -j RETURN   # proxy to the outside`, got[0])
}

func TestFailures(t *testing.T) {
	foreign := ruleset.Ruleset{IPv4: &ruleset.Program{Family: ruleset.IPv4, Chains: []ruleset.Chain{{
		Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{{Target: ruleset.Target{Action: 99}}},
	}}}}
	for want, f := range map[string]func(r *rulesettest.Rules){
		"want: pass":                     func(r *rulesettest.Rules) { r.Out("10.0.0.1:1").Passes() },
		"want: drop":                     func(r *rulesettest.Rules) { r.Out("10.0.0.1:1").Dropped() },
		"want: tproxy 5":                 func(r *rulesettest.Rules) { r.Out("10.0.0.1:1").TProxiedTo(5) },
		"want: redirect 15002":           func(r *rulesettest.Rules) { r.Out("10.0.0.1:1").RedirectedTo(15002) },
		"want: redirect 10.9.9.9:1":      func(r *rulesettest.Rules) { r.Out("10.0.0.1:1").RedirectedToAddr("10.9.9.9:1") },
		"packet's destination":           func(r *rulesettest.Rules) { r.In("here") },
		"packet's source":                func(r *rulesettest.Rules) { r.In("10.0.0.1:1").From("there") },
		"the table has no packet":        func(r *rulesettest.Rules) { r.Table("\n# none\n") },
		`line 2 of the table`:            func(r *rulesettest.Rules) { r.Table("\nout tcp -> 10.0.0.1:1 redirect 15001") },
		`line 1 of the table: "nothing"`: func(r *rulesettest.Rules) { r.Table("nothing") },
	} {
		got := failures(func(tb rulesettest.TB) { f(rulesettest.New(tb, mesh(nil))) })
		if assert.Len(t, got, 1, want) {
			assert.Contains(t, got[0], want)
		}
	}
	got := failures(func(tb rulesettest.TB) { rulesettest.New(tb, foreign).Out("10.0.0.1:1").Passes() })
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "its target is not modelled")
	got = failures(func(tb rulesettest.TB) { rulesettest.New(tb, foreign, "pod") })
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "pod's address")
}

func TestGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "mesh.golden")
	rs := mesh(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass })
	golden := func(rs ruleset.Ruleset) []string {
		return failures(func(tb rulesettest.TB) { rulesettest.Golden(tb, rs, path) })
	}
	missing := golden(rs)
	require.Len(t, missing, 1)
	assert.Contains(t, missing[0], "-rulesettest.update")

	require.NoError(t, flag.Set("rulesettest.update", "true"))
	written := golden(rs)
	require.NoError(t, flag.Set("rulesettest.update", "false"))
	require.Empty(t, written)
	require.Empty(t, golden(rs))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, rulesettest.Text(rs), string(text))
	assert.Contains(t, string(text), "# ipv6\n# no rules\n")

	differs := golden(mesh(func(r *redirect.Redirect) {
		r.IPv6, r.Proxy.OutboundPort = redirect.FamilyPass, 4140
	}))
	require.Len(t, differs, 1)
	assert.Contains(t, differs[0], "\n- -A MESH_REDIRECT -p tcp -j REDIRECT --to-ports 15001\n+ -A MESH_REDIRECT -p tcp -j REDIRECT --to-ports 4140\n")
	assert.NotContains(t, differs[0], "*nat", "what is the same is left out")
}
