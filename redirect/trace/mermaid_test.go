package trace_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

var (
	nodeLine     = regexp.MustCompile(`^ +([A-Za-z0-9_]+)(\(\[|\[)"([^"]*)"(\]\)|\])$`)
	subgraphLine = regexp.MustCompile(`^  subgraph [A-Za-z0-9_]+\["[^"]*"\]$`)
	edgeLine     = regexp.MustCompile(`^  ([A-Za-z0-9_]+) (-->|-\.->) ([A-Za-z0-9_]+)$`)
	classLine    = regexp.MustCompile(`^  class ([A-Za-z0-9_,]+) met$`)
	linkLine     = regexp.MustCompile(`^  linkStyle ([0-9,]+) stroke:`)
)

// checkMermaid holds a drawing to the part of Mermaid's grammar that we use:
// quoted labels, plain names, each node declared once, each edge between
// declared nodes, styles for edges that are there.
func checkMermaid(t fataler, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	require.Equal(t, "flowchart TD", lines[0])
	nodes := map[string]bool{}
	open, edges := 0, 0
	var used []string
	for _, line := range lines[1:] {
		switch {
		case subgraphLine.MatchString(line):
			open++
		case line == "  end":
			open--
		case strings.HasPrefix(line, "  classDef met "):
		case nodeLine.MatchString(line):
			m := nodeLine.FindStringSubmatch(line)
			require.False(t, nodes[m[1]], "node %s is declared twice", m[1])
			nodes[m[1]] = true
			label := strings.NewReplacer("<br/>", "", "<i>", "", "</i>", "").Replace(m[3])
			require.NotContains(t, label, "<", line)
			require.NotRegexp(t, `^\s*(-|\d+\.)\s`, label, "Markdown list")
		case edgeLine.MatchString(line):
			edges++
			m := edgeLine.FindStringSubmatch(line)
			used = append(used, m[1], m[3])
		case classLine.MatchString(line):
			used = append(used, strings.Split(classLine.FindStringSubmatch(line)[1], ",")...)
		case linkLine.MatchString(line):
			for _, n := range strings.Split(linkLine.FindStringSubmatch(line)[1], ",") {
				i, err := strconv.Atoi(n)
				require.NoError(t, err)
				require.Less(t, i, edges)
			}
		default:
			require.Fail(t, "line outside the grammar", "%q", line)
		}
	}
	require.Zero(t, open)
	for _, n := range used {
		require.True(t, nodes[n], "node %s is not declared", n)
	}
}

func TestMermaid(t *testing.T) {
	r := redirect.Default()
	r.DNS, r.Proxy.GIDs = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}, []uint32{1337}
	rs := r.MustRuleset()
	result, err := trace.Trace(rs, packet(t, "out udp uid 1000 -> 10.96.0.10:53"))
	require.NoError(t, err)
	got := trace.Mermaid(rs, ruleset.IPv4, &result)
	checkMermaid(t, got)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile("testdata/dns.mermaid", []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/dns.mermaid")
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "UPDATE_GOLDEN=1 accepts it")

	assert.NotContains(t, trace.Mermaid(rs, ruleset.IPv4, nil), "classDef", "nothing is highlighted without a packet")
	assert.Equal(t, "flowchart TD\n  none([\"ipv6 has no rules: everything passes\"])\n",
		trace.Mermaid(ruleset.Ruleset{}, ruleset.IPv6, nil))
}

// Comments are free text, and may hold what would end a label.
func TestMermaidEscapes(t *testing.T) {
	rs := ruleset.Ruleset{IPv4: &ruleset.FamilyRuleset{Family: ruleset.IPv4, Chains: []ruleset.Chain{{
		Table: ruleset.NAT, Name: ruleset.Output,
		Rules: []ruleset.Rule{{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 1}, Comment: "a \"b\" [c] <script> #quot; `d`\nend"}},
	}}}}
	got := trace.Mermaid(rs, ruleset.IPv4, nil)
	checkMermaid(t, got)
	assert.Contains(t, got, "<i>a #quot;b#quot; [c] #lt;script#gt; #35;quot; #96;d#96; end</i>")
}
