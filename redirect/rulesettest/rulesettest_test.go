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

func TestTable(t *testing.T) {
	rulesettest.New(t, mesh(nil), "10.244.1.5", "fd00:10:244::5").Table(`
		# from the application
		out tcp uid 1000 -> 10.0.0.1:443                   => redirect 15001
		out tcp uid 1337 -> 10.0.0.1:443                   => pass   # the proxy's own
		out tcp gid 1337 -> 10.0.0.1:443                   => redirect 15001   # a group is nobody's
		out udp -> 10.0.0.1:53                             => pass
		out tcp uid 1337 -> 10.244.1.5:80                  => redirect 15006
		out tcp uid 1000 -> 10.244.1.5:80                  => pass

		in  tcp from 10.0.0.9 -> 10.244.1.5:80             =>  redirect   15006
		in  tcp from [fd00::9]:4000 -> [fd00:10:244::5]:80 in net1 => redirect 15006
		in  tcp -> 10.244.1.5:22                           => pass
		in  tcp -> 10.244.1.5:80 state established         => pass
	`)
	rulesettest.New(t, mesh(func(r *redirect.Redirect) {
		r.Mode, r.DropInvalid = redirect.ModeTProxy, true
	}), "10.244.1.5").Table(`
		in  tcp -> 10.244.1.5:80               => tproxy 15006
		out tcp -> 10.244.1.5:80 mark 1337     => pass
		in  tcp -> 10.244.1.5:80 state invalid => drop
	`)
	rulesettest.New(t, ruleset.Ruleset{IPv4: &ruleset.FamilyRuleset{Family: ruleset.IPv4, Chains: []ruleset.Chain{{
		Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{mustRule(t, "-p udp -j DNAT --to-destination 127.0.0.1:8600")},
	}}}}).Table("out udp -> 10.0.0.1:53 => redirect 127.0.0.1:8600")
}

func mustRule(t *testing.T, text string) ruleset.Rule {
	r, err := ruleset.ParseRule(ruleset.IPv4, text)
	require.NoError(t, err)
	return r
}

// recorder stands in for a test, to see it fail.
type recorder struct {
	testing.TB
	messages []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// failures runs f as a test would and returns what it reported.
func failures(f func(tb testing.TB)) []string {
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
	got := failures(func(tb testing.TB) {
		rulesettest.New(tb, mesh(nil)).Table("out tcp uid 1337 -> 10.0.0.1:443 => redirect 15001")
	})
	require.Len(t, got, 1)
	assert.Equal(t, `out tcp uid 1337 gid 0 -> 10.0.0.1:443
  want: redirect 15001
  got:  pass: proxy to the outside: passes
        nat/OUTPUT:1                 -j MESH_OUTPUT
        nat/MESH_OUTPUT:3            -m owner --uid-owner 1337 -j RETURN   # proxy to the outside`, got[0])
}

func TestFailures(t *testing.T) {
	foreign := ruleset.Ruleset{IPv4: &ruleset.FamilyRuleset{Family: ruleset.IPv4, Chains: []ruleset.Chain{{
		Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{{Target: ruleset.Target{Action: 99}}},
	}}}}
	for want, table := range map[string]string{
		"want: pass":                     "out tcp -> 10.0.0.1:1 => pass",
		"want: drop":                     "out tcp -> 10.0.0.1:1 => drop",
		"want: tproxy 5":                 "out tcp -> 10.0.0.1:1 => tproxy 5",
		"want: redirect 15002":           "out tcp -> 10.0.0.1:1 => redirect 15002",
		"want: redirect 10.9.9.9:1":      "out tcp -> 10.0.0.1:1 => redirect 10.9.9.9:1",
		"line 1 of the table":            "in tcp -> here => pass",
		"the table has no packet":        "\n# none\n",
		`line 2 of the table`:            "\nout tcp -> 10.0.0.1:1 redirect 15001",
		`line 1 of the table: "nothing"`: "nothing",
	} {
		got := failures(func(tb testing.TB) { rulesettest.New(tb, mesh(nil)).Table(table) })
		if assert.Len(t, got, 1, want) {
			assert.Contains(t, got[0], want)
		}
	}
	got := failures(func(tb testing.TB) { rulesettest.New(tb, foreign).Table("out tcp -> 10.0.0.1:1 => pass") })
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "its target is not modelled")
	got = failures(func(tb testing.TB) { rulesettest.New(tb, foreign, "pod") })
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "pod's address")
}

func TestGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "mesh.golden")
	rs := mesh(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass })
	golden := func(rs ruleset.Ruleset) []string {
		return failures(func(tb testing.TB) { rulesettest.Golden(tb, rs, path) })
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
	assert.Contains(t, string(text), "# ipv4\n"+rs.IPv4.Commented())
	assert.Contains(t, string(text), "# ipv6\n# no rules\n")

	differs := golden(mesh(func(r *redirect.Redirect) {
		r.IPv6, r.Proxy.OutboundPort = redirect.FamilyPass, 4140
	}))
	require.Len(t, differs, 1)
	assert.Contains(t, differs[0], "\n- -A MESH_REDIRECT -p tcp -j REDIRECT --to-ports 15001\n+ -A MESH_REDIRECT -p tcp -j REDIRECT --to-ports 4140\n")
	assert.NotContains(t, differs[0], "*nat", "what is the same is left out")
}
