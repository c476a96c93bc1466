package doctest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

const troubleshooting = "docs/troubleshooting.md"

// explained are the codes in the first columns of the tables under a heading: all in backticks, before any "{".
func explained(t *testing.T, title string, columns int) []string {
	level, _, _ := strings.Cut(title, " ")
	_, section, ok := strings.Cut(read(t, troubleshooting), "\n"+title+"\n")
	require.True(t, ok, "%s: no section %q", troubleshooting, title)
	section = regexp.MustCompile(`(?m)^#{1,`+string(rune('0'+len(level)))+`} `).Split(section, 2)[0]
	code := regexp.MustCompile("`([^`{]+)(?:\\{[^`]*)?`")
	var all []string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, cell := range cells[1:min(columns+1, len(cells)-1)] {
			for _, m := range code.FindAllStringSubmatch(cell, -1) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// constants are the values of the constants of a type that a package declares. They are read from its source, so that this
// test needs no module but its own.
func constants(t *testing.T, dir, typ string) []string {
	t.Helper()
	var all []string
	for path, text := range sources(t, dir) {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if of, ok := spec.Type.(*ast.Ident); ok && of.Name == typ {
				for _, v := range spec.Values {
					value, err := strconv.Unquote(v.(*ast.BasicLit).Value)
					require.NoError(t, err)
					all = append(all, value)
				}
			}
			return true
		})
	}
	require.NotEmpty(t, all, "constants of %s in %s", typ, dir)
	return all
}

func TestReasonsOfDecisions(t *testing.T) {
	var all []string
	for _, r := range append(selection.Reasons(), status.CodeNotKubernetes, status.CodeAgentPod) {
		all = append(all, string(r))
	}
	assert.ElementsMatch(t, all, explained(t, "### Reasons of the decision", 1))
}

// TestOutcomes: what the records of decisions say.
func TestOutcomes(t *testing.T) {
	text := read(t, troubleshooting)
	for _, outcome := range plugin.Outcomes() {
		assert.Contains(t, text, "`"+string(outcome)+"`", "%s: outcome", troubleshooting)
	}
}
