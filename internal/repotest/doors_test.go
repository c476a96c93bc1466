package repotest

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// door is the one way to something: what only some packages may have in their text.
type door struct {
	what *regexp.Regexp // one line
	// but excuses a line.
	but *regexp.Regexp
	// in are the packages that may.
	in  []string
	why string
}

var doors = []door{
	{
		what: regexp.MustCompile(`"(cache/|multus/)?results"|"cniCacheV1"`), in: []string{"internal/node/inventory/cnicache"},
		why: "only internal/node/inventory reads libcni's cache: each reader knew other layouts of it, and listed it again",
	},
	{
		what: regexp.MustCompile(`"` + module + `/internal/node/inventory/cnicache"`), in: []string{"internal/node/inventory", "installer", "internal/diagnosis/bundle"},
		why: "only internal/node/inventory reads libcni's cache for those who decide about pods; beside it who is asked for its configurations, once: the installer when " +
			"it leaves, without Kubernetes' types, and the support bundle",
	},
	{
		what: regexp.MustCompile(`attachment\.(Open\(|Store\{)`), but: regexp.MustCompile(`Records[:,]? |Records = `), in: []string{"plugin", "internal/node/attachment"},
		why: "only internal/node/inventory reads the plugin's records and rewrites them, so that one who changes what is in force cannot forget it; beside it the plugin itself, " +
			"whose ADD, CHECK, DEL and GC must not pay for an inventory when they start",
	},
	{
		what: regexp.MustCompile(`Records\.(Write|Read|ReadFile|All|Remove|Retain|Tidy)\(`), in: []string{"internal/node/inventory"},
		why: "a store of records is for internal/node/inventory, which is given it",
	},
	{
		what: regexp.MustCompile(`podnetns\.(Find|FindAll|Has)\(`), in: []string{"internal/node/netnsstore", "internal/kernel/conntables", "internal/kernel/podnetns"},
		why: "only internal/node/netnsstore finds a pod's network namespace: the runtime's word outranks processes, and a pod may have none. A pod's connection " +
			"tracking is read by its process, whose file in /proc shows the table without entering the namespace",
	},
	{
		what: regexp.MustCompile(`(^|[^\]])status\.News\{`), in: []string{"internal/node/news", "internal/node/news/reporter", "installer"},
		why: "news is made by internal/node/news, in one line with its code apart, so that nobody parses it; beside it the installer's of what nobody has to look at",
	},
	{
		what: regexp.MustCompile(`nodeevents\.Node\(|\.OfNode\(`), in: []string{"internal/node/nodeevents", "nodeagent", "repair", "cmd/taintcmd"},
		why: "a part adds news to its program's list, from which internal/node/news/reporter makes the node's events, their reminders and the metrics; each part " +
			"that told people itself told them other things than /readyz and the metrics did, and nobody again after an hour. The taint controller tells nodes of their taints",
	},
}

// TestDoors: what has one way in is not gone into by another.
func TestDoors(t *testing.T) {
	used := make([]bool, len(doors))
	for _, s := range sources(t) {
		if s.isTest() || within(s.dir(), "examples", "e2e") {
			continue
		}
		for i, d := range doors {
			for _, at := range d.what.FindAllStringIndex(s.text, -1) {
				line := lineAt(s.text, at[0])
				if slices.Contains(d.in, s.dir()) {
					used[i] = true
				} else if d.but == nil || !d.but.MatchString(line) {
					assert.Fail(t, d.why, "%s: %s", s.path, line)
				}
			}
		}
	}
	assert.NotContains(t, used, false, "a rule is about nothing")
}

func lineAt(text string, at int) string {
	start, end := at, at
	for start > 0 && text[start-1] != '\n' {
		start--
	}
	for end < len(text) && text[end] != '\n' {
		end++
	}
	return text[start:end]
}
