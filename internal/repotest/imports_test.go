package repotest

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rule forbids some packages to import others.
type rule struct {
	// packages are exactly those judged, by their path in the module.
	packages []string
	// forbid are import paths; "x/..." is x and all below it.
	forbid []string
	// transitively judges everything that the packages pull in.
	transitively bool
	why          string
}

// values are the packages of values: what they know is in their arguments.
var values = []string{
	"selection", "redirect", "redirect/ruleset", "redirect/trace", "internal/diagnosis/compare", "dialect", "dialect/istio", "dialect/ambient",
	"dialect/linkerd", "dialect/kuma", "dialect/consul", "conflist", "explain", "internal/nodecontrol/machine", "migrate/internal/migration", "migrate/otherplugin",
	"mesh", "internal/facts", "internal/facts/istiofacts", "internal/facts/ambientfacts", "internal/facts/linkerdfacts", "internal/facts/kumafacts",
	"internal/facts/consulfacts", "warning", "internal/node/judge",
}

// engine are the values that need no Kubernetes types at all.
var engine = []string{"warning", "redirect", "redirect/ruleset", "redirect/trace", "internal/diagnosis/compare"}

var rules = []rule{
	{
		packages: engine, transitively: true,
		forbid: []string{"os/exec", "net/http", "k8s.io/..."},
		why: "a mesh that has its own pod model, or none, must be able to use the engine: it reads values and returns values, " +
			"so that rules can be made, compared and tested on any machine",
	},
	{
		packages: []string{"", "status"}, transitively: true,
		forbid: []string{module + "/...", "k8s.io/...", "golang.org/...", "os/exec", "net/http", "log/slog"},
		why:    "every program and every other package speaks by these, so they need the standard library only; the root has no more than the identity",
	},
	{
		packages: append([]string{"internal/diagnosis/live"}, values...), // it has times that others have seen
		forbid:   []string{"os", "os/exec", "os/user", "net", "net/http", "syscall", "golang.org/x/sys/..."},
		why:      "a package of values has no I/O, no environment and no programs: findings on the host are arguments",
	},
	{
		packages: values, transitively: true,
		forbid: []string{"os/exec", "k8s.io/client-go/...", "github.com/vishvananda/...", "github.com/google/nftables/...", "github.com/spf13/..."},
		why: "values depend on no kernel and no cluster; of Kubernetes they import only types, k8s.io/api " +
			"(which links net/http through apimachinery)",
	},
	{
		packages: values,
		forbid:   []string{"time", "math/rand", "math/rand/v2", "log", "log/slog"},
		why:      "the same pod always gives the same rules, and warnings are part of the result",
	},
	{
		packages: []string{"netnsexec", "redirect/apply", "plugin", "plugin/kubepod", "internal/validate"}, transitively: true,
		forbid: []string{"k8s.io/client-go/...", "github.com/prometheus/...", "github.com/spf13/..."},
		why:    "these end up in the plugin, which is started for each pod: the whole clientset costs it 70 MB and 35 ms",
	},
	{
		packages: []string{"selection"}, transitively: true, forbid: []string{module + "/redirect/..."},
		why: "whether a pod is in a mesh is decided without knowing what that means for its traffic",
	},
	{
		packages: []string{"netnsexec"}, transitively: true,
		forbid: []string{"k8s.io/...", module + "/redirect/...", module + "/selection", module + "/dialect/..."},
		why:    "programs that know no mesh can use it too; apply takes it through a one-method interface",
	},
	{
		packages: []string{"redirect/apply"}, transitively: true,
		forbid: []string{"k8s.io/...", module + "/dialect/...", module + "/selection"},
		why:    "rules are applied alike, whoever made them",
	},
	{
		packages: []string{"cmd/meshcni"}, transitively: true,
		forbid: []string{"k8s.io/client-go/...", "github.com/spf13/...", "github.com/prometheus/..."},
		why:    "start-up time and size of the plugin, which is started for each pod",
	},
	{
		packages: []string{"plugin", "plugin/kubepod", "examples/mesh/cmd/acme-cni"}, transitively: true,
		forbid: []string{
			module + "/dialect/builtin", module + "/dialect/istio/...", module + "/dialect/ambient/...", module + "/dialect/linkerd/...",
			module + "/dialect/kuma/...", module + "/dialect/consul/...",
		},
		why: "a plugin links no dialect that it does not name",
	},
	{
		packages: []string{"cmd/meshcni", "plugin", "selection", "redirect", "dialect", "dialect/istio", "dialect/ambient", "dialect/linkerd", "dialect/kuma", "dialect/consul"},
		forbid:   []string{module + "/mesh/..."}, transitively: true,
		why: "a mesh's facts are for people: nothing decides about a pod by them, and the plugin links none",
	},
	{
		packages: []string{"cmd/nodecmd", "cmd/repaircmd", "cmd/taintcmd", "cmd/redirectcmd", "cmd/kubectlcmd"}, transitively: true,
		forbid: []string{module + "/cmd/nodecmd", module + "/cmd/repaircmd", module + "/cmd/taintcmd", module + "/cmd/redirectcmd", module + "/cmd/kubectlcmd"},
		why:    "a command takes what it shares with another from cmd/internal or a library",
	},
}

func TestImports(t *testing.T) {
	byPath := map[string]pkg{}
	for _, p := range packages(t) {
		byPath[p.path()] = p
	}
	for _, r := range rules {
		for _, path := range r.packages {
			p, ok := byPath[path]
			require.True(t, ok, "the rules judge package %q, which is gone", path)
			imports := p.Imports
			if r.transitively {
				imports = p.Deps
			}
			for _, i := range imports {
				if i == module { // judged itself
					continue
				}
				assert.False(t, slices.ContainsFunc(r.forbid, func(f string) bool { return forbidden(i, f) }),
					"package %s imports %s, but: %s", path, i, r.why)
			}
		}
	}
}

func forbidden(path, pattern string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return within(path, tree)
	}
	return path == pattern
}

// TestImportsOfOthers: nothing imports examples, and only tests import test packages and test libraries.
func TestImportsOfOthers(t *testing.T) {
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			i, ours := strings.CutPrefix(i, module+"/")
			if !ours {
				isTestLibrary := forbidden(i, "github.com/stretchr/testify/...") || i == "pgregory.net/rapid" || i == "go.uber.org/goleak"
				assert.False(t, isTestLibrary && !strings.HasSuffix(p.Name, "test") && p.module() != "e2e",
					"package %s, which is not for tests, imports %s", p.path(), i)
				continue
			}
			assert.False(t, within(i, "examples") && !within(p.path(), "examples"), "package %s imports %s, which is an example", p.path(), i)
			testing := strings.HasSuffix(i, "test") && !within(p.path(), "internal", "cmd/internal", "examples", "e2e") && !strings.HasSuffix(p.path(), "test")
			assert.False(t, testing, "package %s, which is not for tests, imports %s", p.path(), i)
		}
	}
}

// mayImport are the parts of the repository, each with those that it may import: the trees of libraries that only an agent needs, what is
// left of the root, and the programs. Who embeds one part must not bring along what only another needs.
var mayImport = map[string][]string{
	".": nil, "installer": {"."}, "repair": {"."}, "nodeproxy": {"."}, "nodeagent": {".", "installer", "repair", "nodeproxy"},
	"cmd": {".", "installer", "repair", "nodeproxy", "nodeagent"}, "migrate": {".", "cmd", "nodeagent"},
}

// part is the module that a package is in, or in the root's its tree if mayImport names that.
func (p pkg) part() string {
	switch p.path() {
	case "nodeagent/agentapi": // the words of an agent's API
		return "."
	case "internal/kernel/conntables", "internal/nodecontrol", "internal/testing/nodeproxytest", "internal/probes": // what only an agent has
		return "nodeproxy"
	case "internal/diagnosis/kubectl", "internal/testing/kubectltest": // what asks agents
		return "nodeagent"
	}
	if tree, _, _ := strings.Cut(p.path(), "/"); p.module() == "." && mayImport[tree] != nil {
		return tree
	}
	return p.module()
}

// TestParts: a part imports no other than it may, its tests included.
func TestParts(t *testing.T) {
	all := packages(t)
	home := map[string]string{} // a package's part
	for _, p := range all {
		home[p.ImportPath] = p.part()
	}
	for _, p := range all {
		may, ok := mayImport[p.part()]
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			other, ours := home[i]
			assert.False(t, ok && ours && other != p.part() && !slices.Contains(may, other), "package %s of %s imports %s of %s", p.path(), p.part(), i, other)
		}
	}
}
