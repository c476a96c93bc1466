package doctest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/dialects"
)

// TestDialectPages: the page of a dialect names each annotation, label and variable that the dialect's code names.
func TestDialectPages(t *testing.T) {
	// Keys of Kubernetes objects have a domain; variables of containers are in capitals.
	key := regexp.MustCompile(`"([a-z0-9-]+(?:\.[a-z0-9-]+)+/[A-Za-z0-9._-]*[A-Za-z0-9])"`)
	field := regexp.MustCompile("`json:\"(\\w+)\"`")
	variable := regexp.MustCompile(`"([A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9])"`)
	for _, name := range dialects.Names() {
		page := read(t, "docs/dialects/"+name+".md")
		all := map[string]bool{}
		for path, text := range sources(t, "dialect/"+name) {
			for line := range strings.Lines(text) {
				if strings.HasPrefix(strings.TrimSpace(line), "//") || strings.Contains(line, "github.com/") || strings.Contains(line, "k8s.io/") {
					continue
				}
				for _, like := range []*regexp.Regexp{key, variable, field} {
					for _, m := range like.FindAllStringSubmatch(line, -1) {
						all[m[1]] = true
						assert.True(t, strings.Contains(page, m[1]), "docs/dialects/%s.md does not name %s, which %s reads", name, m[1], path)
					}
				}
			}
		}
		if name == "consul" { // whose JSON has the names of its fields
			_, fields, _ := strings.Cut(read(t, "dialect/consul/config.go"), "type config struct {")
			fields, _, _ = strings.Cut(fields, "\n}")
			for _, m := range regexp.MustCompile(`(?m)^\t([A-Z]\w+) `).FindAllStringSubmatch(fields, -1) {
				assert.True(t, strings.Contains(page, "`"+m[1]+"`"), "docs/dialects/%s.md does not name %s", name, m[1])
			}
		}
		assert.NotEmpty(t, all, name)
		d, err := dialects.ByName(name, nil)
		require.NoError(t, err)
		assert.Contains(t, read(t, "docs/how-it-works.md"), "`"+d.Names.ChainPrefix+"`", "chains of %s", name)
		assert.Contains(t, read(t, "docs/dialects/README.md"), "`"+name+"`", "the map of dialects")
	}
}
