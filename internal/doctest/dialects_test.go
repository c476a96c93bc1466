package doctest

import (
	"github.com/meshcni/meshcni/dialect"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/builtin"
)

// A key of an object's metadata has a domain; a container's variable is in capitals.
var keyOrVariable = regexp.MustCompile(`^(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+/[A-Za-z0-9._-]*[A-Za-z0-9]|[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9])$`)

// settingsOf are the names by which a dialect's package reads a pod: its literal keys and variables, and the fields of the
// JSON and YAML that it decodes.
func settingsOf(t *testing.T, name string) (all []string) {
	t.Helper()
	for path, text := range sources(t, "dialect/"+name) {
		if filepath.Dir(path) != "dialect/"+name { // the facts beside it are about the mesh's other objects
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && keyOrVariable.MatchString(s) {
					all = append(all, s)
				}
			case *ast.TypeSpec:
				all = append(all, decoded(n)...)
			}
			return true
		})
	}
	require.NotEmpty(t, all, name)
	return all
}

// decoded are the names of a struct's fields in JSON: by their tags, and in a struct called config, whose fields are called
// as in the JSON, by their own.
func decoded(spec *ast.TypeSpec) (names []string) {
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, f := range fields.Fields.List {
		if f.Tag != nil {
			tag, _ := strconv.Unquote(f.Tag.Value)
			names = append(names, reflect.StructTag(tag).Get("json"))
		} else if spec.Name.Name == "config" {
			for _, name := range f.Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

// TestDialectPages: the page of a dialect names each annotation, label, variable and field that the dialect reads.
func TestDialectPages(t *testing.T) {
	for _, name := range builtin.Names() {
		page := read(t, "docs/dialects/"+name+".md")
		for _, setting := range settingsOf(t, name) {
			named := regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(setting) + `($|[^\w-])`).MatchString(page)
			assert.True(t, named, "docs/dialects/%s.md does not name %s", name, setting)
		}
		d := dialect.SetOf(builtin.All()...).Lookup(name)
		assert.Contains(t, read(t, "docs/how-it-works.md"), "`"+d.Names.ChainPrefix+"`", "chains of %s", name)
		assert.Contains(t, read(t, "docs/dialects/README.md"), "`"+name+"`", "the map of dialects")
	}
}
