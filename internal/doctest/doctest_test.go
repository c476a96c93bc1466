package doctest

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const page = "# Title\n" +
	"<!-- run: local -->\n```sh\necho one\necho two\n```\n\n<!-- expect -->\n```text\none\nt…o\n```\n" +
	"Words. <!-- an aside -->\n\n" +
	"1. In a list:\n\n   <!-- run: cluster, exit 3 -->\n   ```sh\n   if true; then\n     exit 3\n   fi\n   ```\n" +
	"<!-- run: find no-agent -->\n```sh\ntrue\n```\n" +
	"<!-- not run: it changes this machine -->\n```sh\nreboot\n```\n" +
	"<!-- examples/x.go -->\n```go\nvar x int\n```\n" +
	"```\n# no heading\n```\n"

func TestParse(t *testing.T) {
	const file = "page.md"
	got, err := Parse(file, page)
	require.NoError(t, err)
	assert.Equal(t, []Block{
		{File: file, Line: 3, Lang: "sh", Text: "echo one\necho two\n", Tag: Local, Expect: []string{"one", "t…o"}},
		{File: file, Line: 18, Lang: "sh", Text: "if true; then\n  exit 3\nfi\n", Tag: Cluster, Exit: 3},
		{File: file, Line: 24, Lang: "sh", Text: "true\n", Tag: Find, Trouble: "no-agent"},
		{File: file, Line: 28, Lang: "sh", Text: "reboot\n", NotRun: "it changes this machine"},
		{File: file, Line: 32, Lang: "go", Text: "var x int\n", Mark: "examples/x.go"},
		{File: file, Line: 35, Text: "# no heading\n"},
	}, got)
	assert.Equal(t, "page.md:18", got[1].String())
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a block without end":        {"```sh\nls\n", "p.md:1: a block that does not end"},
		"a mark without block":       {"<!-- run: local -->\nwords\n", `p.md:1: no block follows the mark "run: local"`},
		"a mark at the end":          {"x\n<!-- not run: why -->\n", `p.md:2: no block follows the mark "not run: why"`},
		"another tag":                {"<!-- run: moon -->\n```sh\nls\n```\n", `unknown mark "run: moon"`},
		"no trouble":                 {"<!-- run: find -->\n```sh\nls\n```\n", `unknown mark "run: find"`},
		"another option":             {"<!-- run: local, twice -->\n```sh\nls\n```\n", `unknown mark "run: local, twice"`},
		"no reason":                  {"<!-- not run: -->\n```sh\nls\n```\n", "say why it is not run"},
		"what is no command":         {"<!-- run: local -->\n```text\nls\n```\n", `is sh, not "text"`},
		"expected of nothing":        {"<!-- expect -->\n```text\nls\n```\n", "nothing that is run"},
		"expected of what isn't run": {"<!-- not run: why -->\n```sh\nls\n```\n<!-- expect -->\n```text\nls\n```\n", "nothing that is run"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("p.md", c.text)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestRun(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		block Block
		want  string
	}{
		"what is expected":  {Block{Text: "echo $IT; echo err >&2; echo b", Expect: []string{"a… c", "b"}}, ""},
		"another exit code": {Block{Text: "exit 3"}, "expected exit code 0: exit status 3"},
		"its exit code":     {Block{Text: "false", Exit: 1}, ""},
		"no exit code":      {Block{Text: "true", Exit: 1}, "expected exit code 1, got 0"},
		"in a pipe":         {Block{Text: "false | true"}, "expected exit code 0: exit status 1"},
		"a missing line":    {Block{Text: "echo b; echo a", Expect: []string{"a", "b"}}, `no line like "b" after the first 2 lines`},
		"no pattern":        {Block{Text: "echo ab", Expect: []string{"a."}}, `no line like "a."`},
		"and nothing else":  {Block{Text: "echo a; echo b", Expect: []string{"b"}, ExpectAll: true}, `line 1 of the output is "a"`},
		"nor after it":      {Block{Text: "echo a; echo b", Expect: []string{"a"}, ExpectAll: true}, `line 2 of the output is "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			c.block.File, c.block.Line = "p.md", 7
			_, err := c.block.Run(ctx, t.TempDir(), "IT=a b c")
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "p.md:7: ")
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Block{Text: "exit 9"}.Run(ctx, t.TempDir())
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
}
