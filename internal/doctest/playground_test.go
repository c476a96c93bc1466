package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/redirect"
)

// A key in a table: an annotation, or of Consul's JSON. It may be a link already.
var (
	annotationKey = regexp.MustCompile("\\[?`([a-z0-9.-]+/[A-Za-z0-9-]+)`(?:\\]\\[[^\\]]*\\])?")
	consulKey     = regexp.MustCompile("\\[?`([A-Z][A-Za-z]+)`(?:\\]\\[[^\\]]*\\])?")
)

const triedMark = "<!-- generated: examples in the playground -->"

// withExamples makes each annotation in the tables of a dialect's page a link to its example, and returns the keys.
func withExamples(t *testing.T, name, page string) (text string, keys []string) {
	t.Helper()
	page, _, _ = strings.Cut(page, "\n"+triedMark)
	lines := strings.Split(strings.TrimRight(page, "\n"), "\n")
	var definitions strings.Builder
	column, pattern := -1, annotationKey
	for i, line := range lines {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			column = -1
			continue
		}
		if i == 0 || !strings.HasPrefix(lines[i-1], "|") { // a table's head
			column = slices.IndexFunc(cells, func(c string) bool { return strings.HasSuffix(strings.TrimSpace(c), "annotation") })
			pattern = annotationKey
			at := slices.IndexFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "key" })
			if column < 0 && name == "consul" {
				column, pattern = at, consulKey
			}
			continue
		}
		if column < 0 {
			continue
		}
		cells[column] = pattern.ReplaceAllStringFunc(cells[column], func(found string) string {
			key := pattern.FindStringSubmatch(found)[1]
			example, ok := playground.Of(name, key)
			require.True(t, ok, "docs/dialects/%s.md: internal/playground has no example of %s", name, key)
			link, err := example.Link()
			require.NoError(t, err)
			keys = append(keys, key)
			fmt.Fprintf(&definitions, "[%s]: %s\n", key, link)
			return fmt.Sprintf("[`%s`][%s]", key, key)
		})
		lines[i] = strings.Join(cells, "|")
	}
	return strings.Join(lines, "\n") + "\n\n" + triedMark + "\n\n" + definitions.String(), keys
}

// TestPlaygroundExamples: each annotation in the tables of a dialect's page leads to its example, which is a pod that has the
// annotation, and that the dialect captures by it. To write the links anew:
//
//	go test ./internal/doctest -run PlaygroundExamples -update
func TestPlaygroundExamples(t *testing.T) {
	definition := regexp.MustCompile(`(?m)^\[(\S+)\]: (\S+)$`)
	for _, name := range builtin.Names() {
		path := "docs/dialects/" + name + ".md"
		want, keys := withExamples(t, name, read(t, path))
		require.NotEmpty(t, keys, path)
		if *update {
			require.NoError(t, os.WriteFile(filepath.Join(root(t), path), []byte(want), 0o644)) //nolint:gosec // a source file
		}
		page := read(t, path)
		require.Equal(t, want, page, "the links of %s: go test ./internal/doctest -run PlaygroundExamples -update", path)
		links := definition.FindAllStringSubmatch(page, -1)
		require.Len(t, links, len(keys))
		d := dialect.SetOf(builtin.All()...).Lookup(name)
		for _, l := range links {
			key, link := l[1], l[2]
			assert.True(t, strings.HasPrefix(link, playground.Address), link)
			s, err := playground.Read(link)
			require.NoError(t, err, key)
			assert.JSONEq(t, `{"dialect": "`+name+`"}`, string(s.Config))
			m, err := explain.ParseManifest([]byte(s.Pod))
			require.NoError(t, err, key)
			pod := m.Pod
			namespace, err := explain.ParseNamespace([]byte(s.Namespace))
			require.NoError(t, err, key)
			if strings.Contains(key, "/") {
				assert.Contains(t, pod.Annotations, key)
			} else {
				assert.Contains(t, pod.Annotations[playground.ConsulConfig], `"`+key+`":`)
			}
			plan, err := d.Plan(dialect.Subject{Pod: pod, Namespace: namespace, Addrs: explain.Addrs(pod)}, dialect.Options{})
			require.NoError(t, err, key)
			assert.True(t, plan.Decision.Selected, "%s: %s", key, plan.Decision.Detail)
			said := slices.ContainsFunc(plan.Origins, func(o redirect.Origin) bool { return strings.Contains(o.Key, key) })
			if strings.HasPrefix(key, "ConsulDNS") { // which make one setting together
				said = plan.Redirect.DNS.Enabled()
			}
			assert.True(t, said, "%s is no origin of a setting", key)
		}
	}
}
