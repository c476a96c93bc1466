package repotest

import (
	"go/ast"
	"regexp"
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

// kept is what only the keeper of the node's pods has, and who besides.
var kept = []struct {
	what *regexp.Regexp
	in   []string
	why  string
}{
	{
		regexp.MustCompile(`workqueue\.New`), nil,
		"queue pods in a lane of internal/node/keeper: it has one back-off after failures, and one slow pod at a time of all that act on pods keeps no other waiting",
	},
	{
		regexp.MustCompile(`map\[types\.(UID|NamespacedName)\]`), []string{"internal/node/nodepods", "internal/node/netnsstore"},
		"what is remembered of each pod is a keeper.Part, which goes with the pod: the watch has the pods themselves, the store their namespaces",
	},
	{
		regexp.MustCompile(`nterval / time\.Duration\(`), nil,
		"have pods looked at one after the other by keeper.Round",
	},
	{
		regexp.MustCompile(`keeper\.New\(`), []string{"nodeagent/agent.go", "repair/controller.go", "internal/nodecontrol/controller.go"},
		"an agent has one keeper for all who act on its pods; who acts alone makes his own",
	},
	{
		regexp.MustCompile(`(P|p)ods\.Subscribe\(|source\.Subscribe\(`), []string{"internal/nodecontrol/attach.go", "nodeagent/watch.go"},
		"take changes of pods from keeper.Keeper.Subscribe, which bounds how often a pod is looked at for its changes: an ADD alone waits for its pod itself, and who follows the states looks into no pod",
	},
}

// TestOneKeeper: only internal/node/keeper has a queue of pods, a memory of each, a round over all, and hears of their changes. Else each who
// acts on pods has his own, with other bounds, and what one knows of a pod the other does not.
func TestOneKeeper(t *testing.T) {
	used := make([]bool, len(kept))
	for _, s := range sources(t) {
		if s.isTest() || !within(s.dir(), agents...) || within(s.dir(), "repair/internal") {
			continue
		}
		for i, k := range kept {
			if !k.what.MatchString(s.text) {
				continue
			}
			used[i] = true
			assert.True(t, s.dir() == "internal/node/keeper" || within(s.dir(), k.in...) || within(s.path, k.in...), "%s: %s", s.path, k.why)
		}
	}
	assert.NotContains(t, used, false, "a rule is about nothing")
}
