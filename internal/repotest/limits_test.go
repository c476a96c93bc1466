package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limits are the packages that may limit how often something is done, by what they import for that, with the reason.
var limits = map[string]map[string]string{
	"golang.org/x/time/rate": {
		"internal/node/budget":     "what is done to pods, by namespace, and looks at one pod",
		"internal/node/nodeevents": "pods' events, which an API server has to store",
	},
	module + "/internal/node/budget": {
		"internal/node/keeper": "looks at one pod that its changes cause, and what is done to pods, for all who act on them: one tenant's broken pods hold back no other's, " +
			"and who changes a pod's rules again and again has them written again no faster",
		"repair": "its settings are the keeper's",
	},
	"k8s.io/client-go/util/flowcontrol": {},
}

// TestLimits: there are two kinds of limit, rates by x/time/rate, of which the long run counts, and pauses that grow by [wait.Backoff] or a
// queue's limiter, as long as something fails. Whoever asks why nothing happens has two places to look at.
func TestLimits(t *testing.T) {
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			if may, ok := limits[i]; ok {
				assert.NotEmpty(t, may[p.path()], "package %s imports %s: it is not among those that limit rates", p.path(), i)
				used[i+" "+p.path()] = true
			}
		}
	}
	for i, may := range limits {
		for p := range may {
			assert.True(t, used[i+" "+p], "package %s imports %s no more", p, i)
		}
	}
}

// doublings are the files in which a pause grows by hand, with the reason.
var doublings = map[string]string{
	"plugin/agent.go":                   "the plugin's program, which is started for each pod, links as little as it can",
	"plugin/fetch.go":                   "the plugin's program, which is started for each pod, links as little as it can",
	"redirect/apply/lock.go":            "rules are applied without Kubernetes",
	"internal/kernel/nfnetlink/conn.go": "rules are applied without Kubernetes",
	"installer/conflict.go":             "the installer knows no Kubernetes",
	"e2e/cmd/podtool/ztunnel.go":        "a small program in an image",
}

// TestPausesGrowByBackoff: what waits longer after each failure does so by [wait.Backoff].
func TestPausesGrowByBackoff(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		for _, at := range doubled(s.file) {
			used[s.path] = true
			assert.NotEmpty(t, doublings[s.path], "%s: use wait.Backoff of k8s.io/apimachinery", s.fset.Position(at))
		}
	}
	for file := range doublings {
		assert.True(t, used[file], "%s doubles no pause any more", file)
	}
}

// doubled finds x = min(2*x, most).
func doubled(file *ast.File) (found []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Rhs) != 1 || len(assign.Lhs) != 1 {
			return true
		}
		call, ok := assign.Rhs[0].(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.Ident); !ok || f.Name != "min" {
			return true
		}
		for _, arg := range call.Args {
			if x, ok := arg.(*ast.BinaryExpr); ok && x.Op == token.MUL && (text(x.X) == text(assign.Lhs[0]) || text(x.Y) == text(assign.Lhs[0])) {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

// text is a name with its selectors.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return text(e.X) + "." + e.Sel.Name
	}
	return "?"
}

func TestDoubled(t *testing.T) {
	for body, found := range map[string]int{
		"pause = min(2*pause, most)":                        1,
		"c.pause = min(c.pause*2, c.most)":                  1,
		"for p := first; ; p = min(2*p, most) { sleep(p) }": 1,
		"size = min(2*other, most)":                         0,
		"n = min(n, 2)":                                     0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", strings.Join([]string{"package x", "func f() {", body, "}"}, "\n"), 0)
		require.NoError(t, err, body)
		assert.Len(t, doubled(file), found, body)
	}
}
