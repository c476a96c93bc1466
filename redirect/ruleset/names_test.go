package ruleset_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var ownLine = regexp.MustCompile(`^(?:\*(?:raw|mangle|nat|filter)|COMMIT|:(?P<chain>\S+) - \[0:0\]|-X (?P<gone>\S+)|-(?:[AD]|I) (?P<of>\S+) (?:\d+ )?(?P<rule>.*))$`)

var insert = regexp.MustCompile(`-I (\S+) \d+ `)

// requireOwn holds a text for iptables-restore to what a program may be given: chains of
// the owner's and built-in ones only, and rules that are understood to the last word.
func requireOwn(t testing.TB, owner ruleset.Ownership, f ruleset.Family, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		m := ownLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		require.NotNil(t, m, "%q", line)
		for i, name := range ownLine.SubexpNames() {
			switch {
			case m[i] == "" || name == "" || name == "of" && chains.IsBuiltin(m[i]):
			case name == "rule":
				require.NotContains(t, m[i], "\t")
				r, err := ruleset.ParseRule(f, m[i])
				require.NoError(t, err, "%q", line)
				if m[ownLine.SubexpIndex("of")] != "" && r.Target.Action != ruleset.ActionLog {
					require.Regexp(t, `^[A-Za-z0-9_.:,/!+ -]*$`, m[i])
				}
			default:
				require.True(t, owner.OwnsChain(m[i]), "%q", line)
			}
		}
	}
}

// TestHostileNames: whatever a chain is called, it is not taken for the mesh's, none of
// its rules for a rule of the mesh's, and nothing of it is in a text.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	p := redirect.Default().MustRuleset().IPv4
	clean := p.String()
	for _, name := range []string{
		"MESH_OUTPUT\tx", "MESH_OUTPUT\t-j\tACCEPT", "MESH_OUTPUT x", "MESH_OUTPUT ", " MESH_OUTPUT", "MESH_REDIRECT\n", "MESH_X\n-A OUTPUT -j ACCEPT",
		"x - [0:0]\nCOMMIT\n*filter\n-A OUTPUT -m ../../x -j DROP\n#", "\n", " ", "\t", "q\"q", `b\`, "MESH_" + strings.Repeat("o", 60), "MESH_ü", "\xff",
	} {
		at := strings.Index(clean, "-A ")
		text := clean[:at] + ":" + name + " - [0:0]\n" + strings.Replace(clean[at:], "COMMIT\n", "-A "+name+" -p tcp -j "+name+"\n-A "+name+" -j RETURN\nCOMMIT\n", 1)
		saved, err := ruleset.Parse(ruleset.IPv4, text, name)
		require.NoError(t, err, "%q", name)
		assert.Empty(t, p.Diff(saved), "%q", name)
		assert.Empty(t, p.Transition(saved), "%q", name)
		gone := p.Owner.EmptyRuleset().Family(p.Family).Transition(saved)
		requireOwn(t, p.Owner, ruleset.IPv4, gone)
		alone, err := ruleset.Parse(ruleset.IPv4, p.String())
		require.NoError(t, err)
		assert.Equal(t, p.Owner.EmptyRuleset().Family(p.Family).Transition(alone), gone, "%q", name)
		assert.False(t, p.Owner.OwnsChain(name), "%q", name)
		back, lost := p.Owner.Rollback(saved, nil)
		requireOwn(t, p.Owner, ruleset.IPv4, back)
		assert.Empty(t, lost)
		assert.Empty(t, p.Diff(parse(t, ruleset.IPv4, insert.ReplaceAllString(back, "-A $1 "))), "%q", name)
	}
}

// TestQuotedLineFeeds: a comment is one word, whatever it holds.
func TestQuotedLineFeeds(t *testing.T) {
	t.Parallel()
	p := small("-p tcp -j REDIRECT --to-ports 15001")
	text := strings.Replace(p.String(), "COMMIT\n", "-A OUTPUT -m comment --comment \"a \\\" b\nCOMMIT\n-A OUTPUT -j MESH_X\n\\\\\" -j MESH_OUTPUT\nCOMMIT\n", 1)
	saved := parse(t, ruleset.IPv4, text)
	assert.Empty(t, p.Diff(saved))
	// The jump is not ours, so the chain is emptied and stays: the kernel would refuse more.
	assert.Equal(t, "*nat\n:MESH_OUTPUT - [0:0]\n-D OUTPUT -j MESH_OUTPUT\nCOMMIT\n", p.Owner.EmptyRuleset().Family(p.Family).Transition(saved))
	_, err := ruleset.Parse(ruleset.IPv4, "*nat\n-A OUTPUT -m comment --comment \"a\nCOMMIT\n")
	require.ErrorContains(t, err, "line 2")
}

// TestManyHostileNames: there is a bound to what is looked for.
func TestManyHostileNames(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("*nat\n")
	for i := range 300 {
		text.WriteString(":a " + strings.Repeat("b", i) + " - [0:0]\n")
	}
	_, err := ruleset.Parse(ruleset.IPv4, text.String()+"COMMIT\n")
	require.ErrorContains(t, err, "300 chains")
}

// TestBack: what was found comes back in its place, less what was not understood.
func TestBack(t *testing.T) {
	t.Parallel()
	owner := redirect.Default().Names.Owner()
	before := parse(t, ruleset.IPv4, "*nat\n:OUTPUT ACCEPT [0:0]\n:MESH_OUTPUT - [0:0]\n:MESH_OLD - [0:0]\n:THEIRS - [0:0]\n"+
		"-A OUTPUT -j MESH_OLD\n-A OUTPUT -j THEIRS\n-A OUTPUT -p tcp -j MESH_OUTPUT\n-A OUTPUT -o eth0 -j ACCEPT\n"+
		"-A MESH_OUTPUT -p tcp -m tcp -j RETURN\n-A MESH_OLD -m comment --comment \"-m x\" -j RETURN\n-A MESH_OLD -j RETURN\nCOMMIT\n")
	now := parse(t, ruleset.IPv4, "*nat\n:OUTPUT ACCEPT [0:0]\n:MESH_OUTPUT - [0:0]\n:MESH_NEW - [0:0]\n:THEIRS - [0:0]\n"+
		"-A OUTPUT -j THEIRS\n-A OUTPUT -o eth0 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -j MESH_NEW\nCOMMIT\n"+
		"*mangle\n:MESH_X - [0:0]\n-A PREROUTING -j MESH_X\nCOMMIT\n")
	text, lost := owner.Rollback(before, now)
	assert.Equal(t, `*mangle
:MESH_X - [0:0]
-D PREROUTING -j MESH_X
-X MESH_X
COMMIT
*nat
:MESH_NEW - [0:0]
:MESH_OUTPUT - [0:0]
:MESH_OLD - [0:0]
-D OUTPUT -j MESH_OUTPUT
-A MESH_OUTPUT -p tcp -m tcp -j RETURN
-A MESH_OLD -j RETURN
-I OUTPUT 1 -j MESH_OLD
-I OUTPUT 3 -p tcp -j MESH_OUTPUT
-X MESH_NEW
COMMIT
`, text)
	assert.Equal(t, []string{`-A MESH_OLD -m comment --comment "-m x" -j RETURN`}, lost)
	text, lost = owner.Rollback(before, before)
	assert.Empty(t, text)
	assert.Empty(t, lost)
}
