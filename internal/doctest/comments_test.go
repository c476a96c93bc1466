package doctest

import (
	"fmt"
	"go/ast"
	"go/doc"
	doccomment "go/doc/comment"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/meshcni/meshcni"

// commented is a package with its documentation, and the names that its comments may link to.
type commented struct {
	*doc.Package
	names map[string]bool
	// imports are the paths that its files import, by name.
	imports map[string]string
}

// packagesOf reads all packages of the repository, by their import paths.
func packagesOf(t *testing.T) map[string]*commented {
	t.Helper()
	all := map[string]*commented{}
	byDir := map[string][]*ast.File{}
	fset := token.NewFileSet()
	for _, file := range files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/") {
			continue
		}
		parsed, err := parser.ParseFile(fset, filepath.Join(root(t), file), nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		dir := path.Dir(filepath.ToSlash(file))
		byDir[dir] = append(byDir[dir], parsed)
	}
	for dir, list := range byDir {
		at := path.Join(module, dir)
		p, err := doc.NewFromFiles(fset, list, at, doc.AllDecls|doc.PreserveAST)
		require.NoError(t, err, dir)
		c := &commented{Package: p, names: map[string]bool{}, imports: map[string]string{}}
		for _, f := range list {
			for _, i := range f.Imports {
				to, err := strconv.Unquote(i.Path.Value)
				require.NoError(t, err)
				name := path.Base(to)
				if i.Name == nil {
					c.imports[name] = to
				} else {
					c.imports[i.Name.Name] = to
				}
			}
			for _, d := range f.Decls {
				c.declared(d)
			}
		}
		all[at] = c
	}
	return all
}

func (c *commented) declared(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			c.names[d.Name.Name] = true
			return
		}
		c.names[receiver(d.Recv.List[0].Type)+"."+d.Name.Name] = true
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					c.names[n.Name] = true
				}
			case *ast.TypeSpec:
				c.names[s.Name.Name] = true
				var members *ast.FieldList
				switch typ := s.Type.(type) {
				case *ast.StructType:
					members = typ.Fields
				case *ast.InterfaceType:
					members = typ.Methods
				default:
					continue
				}
				for _, m := range members.List {
					for _, n := range m.Names {
						c.names[s.Name.Name+"."+n.Name] = true
					}
				}
			}
		}
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// bracketed is what reads like a link of a comment to an exported name.
var bracketed = regexp.MustCompile(`\[\*?(?:[a-z][\w/.-]*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?\]`)

// comments calls fn with each comment of the package that documentation shows.
func (c *commented) comments(fn func(on, text string)) {
	fn(c.Name, c.Doc)
	values := func(list []*doc.Value) {
		for _, v := range list {
			fn(strings.Join(v.Names, ", "), v.Doc)
			for _, s := range v.Decl.Specs {
				if s, ok := s.(*ast.ValueSpec); ok {
					fn(s.Names[0].Name, s.Doc.Text()+"\n"+s.Comment.Text())
				}
			}
		}
	}
	funcs := func(list []*doc.Func) {
		for _, f := range list {
			fn(f.Name, f.Doc)
		}
	}
	values(c.Consts)
	values(c.Vars)
	funcs(c.Funcs)
	for _, typ := range c.Types {
		fn(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
		ast.Inspect(typ.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				fn(typ.Name+"."+fieldName(f), f.Doc.Text()+"\n"+f.Comment.Text())
			}
			return true
		})
	}
}

func fieldName(f *ast.Field) string {
	if len(f.Names) == 0 {
		return "(embedded)"
	}
	return f.Names[0].Name
}

// TestCommentLinks: what reads like a link in a comment leads somewhere: to a name of the package, or of one that a file of the package
// imports or that the link names in full.
func TestCommentLinks(t *testing.T) {
	all := packagesOf(t)
	seen := 0
	for at, c := range all {
		p := c.Parser()
		p.LookupSym = func(recv, name string) bool {
			if recv != "" {
				name = recv + "." + name
			}
			return c.names[name]
		}
		c.comments(func(on, text string) {
			d := p.Parse(text)
			texts(d.Content, func(piece doccomment.Text) {
				switch piece := piece.(type) {
				case doccomment.Plain:
					for _, m := range bracketed.FindAllString(string(piece), -1) {
						assert.Fail(t, "a link that leads nowhere", "%s, %s: %s", at, on, m)
					}
				case *doccomment.DocLink:
					seen++
					other := all[piece.ImportPath]
					if piece.ImportPath == "" || other == nil || piece.Name == "" {
						return
					}
					name := piece.Name
					if piece.Recv != "" {
						name = piece.Recv + "." + name
					}
					assert.True(t, other.names[name], "%s, %s: %s has no %s", at, on, piece.ImportPath, name)
				}
			})
		})
	}
	assert.Greater(t, seen, 500)
}

// texts calls fn with each piece of the text that is not code.
func texts(blocks []doccomment.Block, fn func(doccomment.Text)) {
	var pieces func([]doccomment.Text)
	pieces = func(all []doccomment.Text) {
		for _, piece := range all {
			fn(piece)
			if l, ok := piece.(*doccomment.Link); ok && !l.Auto {
				pieces(l.Text)
			}
		}
	}
	for _, b := range blocks {
		switch b := b.(type) {
		case *doccomment.Paragraph:
			pieces(b.Text)
		case *doccomment.Heading:
			pieces(b.Text)
		case *doccomment.List:
			for _, item := range b.Items {
				texts(item.Content, fn)
			}
		}
	}
}

// sample is a block of a comment that is Go.
type sample struct {
	at, on  string
	file    *ast.File
	imports map[string]string // of it, by name
}

// sampleOf reads a block as Go. One with a short declaration has to be; of others it is nil if they are not, or name no package.
func sampleOf(t *testing.T, fset *token.FileSet, c *commented, own map[string][]*commented, text string) *sample {
	t.Helper()
	text = strings.NewReplacer(", …", "", "{ … }", "{}", "(…)", "()").Replace(text)
	parse := func(imports string) (*ast.File, error) {
		return parser.ParseFile(fset, "sample.go", "package sample\n"+imports+"\nfunc _() {\n"+text+"\n}", parser.SkipObjectResolution)
	}
	f, err := parse("")
	if err != nil {
		assert.NotContains(t, text, ":=", "%s: a sample that is not Go: %v", c.ImportPath, err)
		return nil
	}
	s := &sample{at: c.ImportPath, imports: map[string]string{}}
	var clause strings.Builder
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok || !sel.Sel.IsExported() || s.imports[id.Name] != "" {
			return true
		}
		to := c.imports[id.Name]
		if id.Name == c.Name {
			to = c.ImportPath
		}
		for _, other := range own[id.Name] {
			if to == "" && (len(own[id.Name]) == 1 || other.names[sel.Sel.Name]) {
				to = other.ImportPath
			}
		}
		if to == "" {
			to, _ = doccomment.DefaultLookupPackage(id.Name)
		}
		if to != "" {
			s.imports[id.Name] = to
			fmt.Fprintf(&clause, "import %s %q\n", id.Name, to)
		}
		return true
	})
	if len(s.imports) == 0 {
		return nil
	}
	s.file, err = parse(clause.String())
	require.NoError(t, err)
	return s
}

// left is what the compiler says of a sample because it is part of something: names that its reader has, and values that are not used.
var left = regexp.MustCompile(`^undefined: [a-z]\w*$|^declared and not used|is not used$|^no new variables|imported and not used`)

// TestCommentSamples: the samples in comments compile. Variables that a sample does not declare are its reader's, of whatever type it takes.
func TestCommentSamples(t *testing.T) {
	all := packagesOf(t)
	own := map[string][]*commented{} // that a sample may import
	for at, c := range all {
		if c.Name != "main" && !strings.Contains(at, "/internal/") && !strings.HasPrefix(at, module+"/examples/") {
			own[c.Name] = append(own[c.Name], c)
		}
	}
	fset := token.NewFileSet()
	var samples []*sample
	needed := map[string]bool{}
	for at, c := range all {
		if c.Name == "main" || strings.HasPrefix(at, module+"/e2e/") || strings.HasPrefix(at, module+"/release/") {
			continue
		}
		c.comments(func(on, text string) {
			for _, b := range c.Parser().Parse(text).Content {
				code, ok := b.(*doccomment.Code)
				if !ok {
					continue
				}
				if s := sampleOf(t, fset, c, own, code.Text); s != nil {
					s.on = on
					samples = append(samples, s)
					for _, to := range s.imports {
						needed[to] = true
					}
				}
			}
		})
	}
	require.Greater(t, len(samples), 15)
	exported := exportData(t, slices.Sorted(maps.Keys(needed)))
	read := importer.ForCompiler(fset, "gc", func(at string) (io.ReadCloser, error) { return os.Open(exported[at]) })
	for _, s := range samples {
		config := types.Config{Importer: read, Error: func(err error) {
			if said := err.(types.Error).Msg; !left.MatchString(said) { //nolint:errorlint // what types.Config says
				assert.Fail(t, "a sample that does not compile", "%s, %s: %s", s.at, s.on, said)
			}
		}}
		_, _ = config.Check("sample", fset, []*ast.File{s.file}, nil) // Error has heard of it
	}
}

// exportData returns the files with the compiler's summaries of the packages and of what they import.
func exportData(t *testing.T, packages []string) map[string]string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}, packages...)...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	require.NoError(t, err)
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		at, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		all[at] = file
	}
	return all
}
