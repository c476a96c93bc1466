package repotest

import (
	"go/ast"
	"testing"

	"github.com/stretchr/testify/assert"
)

// agents are the packages that run in a node's agent and deal with its pods.
var agents = []string{"nodeagent", "repair", "installer", "internal/nodecontrol", "internal/node/nodepods", "internal/node/podrules", "internal/node", "cmd/nodecmd", "cmd/repaircmd"}

// TestOneJudge: only internal/node/judge asks a mesh about a pod in the agent. Else what is claimed of a pod and what is done to it may go by
// different answers, and each change of a pod costs as many questions as there are places that ask.
func TestOneJudge(t *testing.T) {
	judges := 0
	for _, s := range sources(t) {
		if s.isTest() || !within(s.dir(), agents...) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			asks := ""
			switch n := n.(type) {
			case *ast.CallExpr:
				fn, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					break
				}
				nobody := len(n.Args) == 1 && isNil(n.Args[0])
				if fn.Sel.Name == "Decide" || fn.Sel.Name == "ReadsNamespace" && len(n.Args) == 1 && !nobody {
					asks = fn.Sel.Name
				}
			case *ast.CompositeLit: // the argument of Set.Plan and Dialect.Plan
				if t, ok := n.Type.(*ast.SelectorExpr); ok && t.Sel.Name == "Subject" {
					asks = "Subject"
				}
			}
			if asks != "" && within(s.dir(), "internal/node/judge") {
				judges++
			} else {
				assert.Empty(t, asks, "%s asks a mesh about a pod: take the pod's judgement (internal/node/judge), which is made once", s.path)
			}
			return true
		})
	}
	assert.Positive(t, judges, "the rule finds nothing any more")
}

func isNil(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "nil"
}

// TestOneClient: only internal/node/api makes a client of the API server in the agent. Else each part has its own kinds, encoding, rate and
// connection, and what the agent asks for is held to no role's rights.
func TestOneClient(t *testing.T) {
	makers := 0
	for _, s := range sources(t) {
		if s.isTest() || !within(s.dir(), append(agents, "internal/node/daemonset", "internal/node/nodeevents")...) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			fn, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			makes := ""
			switch fn.Sel.Name {
			case "NewForConfig", "NewForConfigAndClient", "RESTClientFor", "UnversionedRESTClientFor", "RESTClientForConfigAndClient", "HTTPClientFor", "TransportFor":
				makes = fn.Sel.Name
			}
			if makes != "" && s.dir() == "internal/node/api" {
				makers++
			} else {
				assert.Empty(t, makes, "%s makes a client of its own: add a verb to internal/node/api, with its right beside it", s.path)
			}
			return true
		})
	}
	assert.Positive(t, makers, "the rule finds nothing any more")
}
