package repotest

import (
	"go/ast"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// printing are the packages that print texts of clusters, pods and kernels for people.
var printing = []string{
	"explain", "internal/diagnosis/live", "redirect/trace", "redirect/ruleset", "cmd/kubectlcmd", "cmd/redirectcmd", "cmd/nodecmd", "nodeagent", "cmd/taintcmd", "cmd/repaircmd",
	"cmd/internal/cli", "migrate", "migrate/internal/migration", "internal/program/serve",
}

// notPrinted are files that write otherwise, and what it is.
var notPrinted = map[string]string{
	"cmd/internal/cli/cli.go":   "the program's own version",
	"cmd/internal/cli/flags.go": "help, which is a constant but for the environment of whoever asks",
	"migrate/migrate.go":        "a file of YAML",
	"cmd/nodecmd/bundle.go":     "a file of a bundle: the settings; whatever is added to it goes through its scrubber",
	"cmd/redirectcmd/rules.go":  "a chart, which trace has made",
}

// TestPrintersAreVisible: what prints for people takes a visible.Printer, so that no text of others makes a line of ours.
func TestPrintersAreVisible(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || !slices.Contains(printing, s.dir()) {
			continue
		}
		seen[s.dir()] = true
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			fn, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, ok := fn.X.(*ast.Ident)
			writes := ok && (id.Name == "fmt" && slices.Contains([]string{"Fprint", "Fprintf", "Fprintln", "Print", "Printf", "Println"}, fn.Sel.Name) ||
				id.Name == "io" && fn.Sel.Name == "WriteString" || id.Name == "tabwriter" && fn.Sel.Name == "NewWriter")
			assert.False(t, writes && notPrinted[s.path] == "", "%s prints by %s.%s: take a *visible.Printer (internal/text/visible), whose operands cannot end a line", s.path, id, fn.Sel.Name)
			return true
		})
	}
	assert.Len(t, seen, len(printing), "a package is gone")
}
