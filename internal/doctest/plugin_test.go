package doctest

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// keyRow is a row of the table of the plugin's keys: the key, an example or default as JSON, and the rest.
var keyRow = regexp.MustCompile("^\\| `([a-z_.]+)` \\| (?:`([^`]*)`)? *\\| ")

// TestPluginKeys: the plugin takes each key that the reference has, with the default that it gives, and the reference
// has each key that the plugin takes.
func TestPluginKeys(t *testing.T) {
	_, section, ok := strings.Cut(read(t, reference), "\n## The plugin's configuration\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	documentedKeys := map[string]string{}
	for line := range strings.Lines(section) {
		if m := keyRow.FindStringSubmatch(line); m != nil {
			documentedKeys[m[1]] = m[2]
		}
	}
	assert.ElementsMatch(t, pluginKeys(t), keysOf(documentedKeys), "keys of %s, and those that plugin/netconf reads", reference)

	const standard = `"cniVersion": "1.0.0", "name": "pods", "type": "meshcni"`
	plain, _, err := netconf.Parse([]byte("{" + standard + "}"))
	require.NoError(t, err)
	for key, byDefault := range documentedKeys {
		if byDefault == "" || key == "dialect" { // whose default is the plugin's, not the configuration's
			continue
		}
		value := json.RawMessage(byDefault)
		if !json.Valid(value) {
			value = json.RawMessage(strconv.Quote(byDefault))
		}
		text := strconv.Quote(key) + ": " + string(value)
		if outer, inner, ok := strings.Cut(key, "."); ok {
			text = strconv.Quote(outer) + ": {" + strconv.Quote(inner) + ": " + string(value) + "}"
		}
		got, _, err := netconf.Parse([]byte("{" + standard + ", " + text + "}"))
		require.NoError(t, err, key)
		if len(got.Kubernetes.ExcludeNamespaces) == 0 {
			got.Kubernetes.ExcludeNamespaces = nil
		}
		assert.Equal(t, plain, got, "%s is not the default of %s", byDefault, key)
	}
}

func keysOf[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// pluginKeys are the keys of its own that netconf.Parse takes, by its source.
func pluginKeys(t *testing.T) []string {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), "plugin/netconf/parse.go"), nil, 0)
	require.NoError(t, err)
	var keys []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		on, ok := sel.X.(*ast.Ident)
		key, isText := call.Args[0].(*ast.BasicLit)
		if !ok || !isText || on.Name != "top" && on.Name != "kubernetes" || sel.Sel.Name == "object" || sel.Sel.Name == "take" {
			return true
		}
		name, err := strconv.Unquote(key.Value)
		require.NoError(t, err)
		if on.Name == "kubernetes" {
			name = "kubernetes." + name
		}
		switch name {
		case "cniVersion", "name", "type": // the specification's
		default:
			keys = append(keys, name)
		}
		return true
	})
	require.NotEmpty(t, keys)
	return keys
}
