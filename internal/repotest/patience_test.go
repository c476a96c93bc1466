package repotest

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// impatient are the functions of tests, by file, in which a bound may be short: it is reached on purpose, or what follows is another attempt.
var impatient = map[string]string{
	"nodeagent/nodeproxy_test.go TestOneAgentHasThePods":                        "the end of the wait is what is tested",
	"e2e/runtime/agent_test.go ask":                                             "asks again",
	"e2e/runtime/sandbox_test.go runSandbox":                                    "a kubelet's",
	"netnsexec/exec_linux_test.go TestContextEndsTheChild":                      "the deadline is what is tested",
	"internal/nodecontrol/attach_linux_test.go TestAttachBeforeTheCache":        "the end of the wait is what is tested",
	"internal/testing/nodeproxytest/property_linux_test.go TestWhateverHappens": "a caller that gives up at any time",
	"redirect/apply/iptables_test.go TestDeadline":                              "the deadline is what is tested",
	"repair/integration/ambient_linux_test.go TestAmbientCapabilities":          "asks again",
}

// TestPatience: a bound that fails a test when it is reached is [netnstest.Patience], or longer: what takes some milliseconds takes many
// seconds on a busy machine.
func TestPatience(t *testing.T) {
	constants := map[string]map[string]ast.Expr{} // by folder
	for _, s := range sources(t) {
		if s.isTest() {
			for name, value := range constantsOf(s.file) {
				if constants[path.Dir(s.path)] == nil {
					constants[path.Dir(s.path)] = map[string]ast.Expr{}
				}
				constants[path.Dir(s.path)][name] = value
			}
		}
	}
	used := map[string]bool{}
	for _, s := range sources(t) {
		if !s.isTest() || strings.Contains(s.text, `"testing/synctest"`) {
			continue
		}
		for _, b := range shortBounds(s.file, constants[path.Dir(s.path)]) {
			if where := s.path + " " + b.in; impatient[where] != "" {
				used[where] = true
				continue
			}
			assert.Fail(t, "a busy machine reaches this bound: give netnstest.Patience, or name the function in impatient", "%s: %s in %s",
				s.fset.Position(b.at), b.what, b.in)
		}
	}
	for where := range impatient {
		assert.True(t, used[where], "%s has no short bound any more", where)
	}
}

type bound struct {
	at       token.Pos
	what, in string
}

// bounding says which argument of a function or method is how long it waits.
var bounding = map[string]int{
	"Eventually": 2, "EventuallyWithT": 2, "Eventuallyf": 2, "EventuallyWithTf": 2, "WithTimeout": 1, "WithTimeoutCause": 1, "WithDeadline": 1, "After": 0, "NewTimer": 0,
	"AfterFunc": 0, "DialTimeout": 2, "SetDeadline": 0, "SetReadDeadline": 0, "SetWriteDeadline": 0, "Poll": 0, "WaitFor": 0,
}

// shortBounds finds the bounds that are made of literals, or of constants of that, and are shorter than [netnstest.Patience]. One of no
// length has ended before, so it waits for nothing. What says that something does not happen for a while is as bad: it passes where
// nothing happens at all.
func shortBounds(file *ast.File, constants map[string]ast.Expr) (found []bound) {
	for _, decl := range file.Decls {
		in := "a declaration"
		if f, ok := decl.(*ast.FuncDecl); ok {
			in = f.Name.Name
		}
		local := map[string]ast.Expr{}
		ast.Inspect(decl, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok {
				collect(d, local)
			}
			return true
		})
		lookup := func(name string) ast.Expr {
			if e := local[name]; e != nil {
				return e
			}
			return constants[name]
		}
		add := func(n ast.Node, what string, arg ast.Expr) {
			if d, ok := duration(arg, lookup, 0); ok && d > 0 && d < netnstest.Patience {
				found = append(found, bound{n.Pos(), what + " of " + d.String(), in})
			}
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				name := ""
				if f, ok := n.Fun.(*ast.SelectorExpr); ok {
					name = f.Sel.Name
				}
				if at, ok := bounding[name]; ok && at < len(n.Args) {
					add(n, name, n.Args[at])
				}
				if (name == "Never" || name == "Neverf") && len(n.Args) > 3 {
					found = append(found, bound{n.Pos(), name, in})
				}
			case *ast.CompositeLit:
				if calledOf(n.Type, "net") != "Dialer" && calledOf(n.Type, "http") != "Client" {
					return true
				}
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Timeout" {
							add(n, "Timeout", kv.Value)
						}
					}
				}
			}
			return true
		})
	}
	return found
}

func constantsOf(file *ast.File) map[string]ast.Expr {
	all := map[string]ast.Expr{}
	for _, d := range file.Decls {
		if d, ok := d.(*ast.GenDecl); ok {
			collect(d, all)
		}
	}
	return all
}

func collect(d *ast.GenDecl, into map[string]ast.Expr) {
	for _, spec := range d.Specs {
		if v, ok := spec.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
			for i, name := range v.Names {
				into[name.Name] = v.Values[i]
			}
		}
	}
}

var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// duration is the value of an expression of literals, units of time, constants of those, and time.Now().Add of that.
func duration(e ast.Expr, lookup func(string) ast.Expr, depth int) (time.Duration, bool) {
	if depth > 10 {
		return 0, false
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return duration(e.X, lookup, depth+1)
	case *ast.BasicLit:
		n, exact := constant.Int64Val(constant.ToInt(constant.MakeFromLiteral(e.Value, e.Kind, 0)))
		return time.Duration(n), exact && e.Kind == token.INT
	case *ast.Ident:
		if value := lookup(e.Name); value != nil {
			return duration(value, lookup, depth+1)
		}
	case *ast.SelectorExpr:
		d, ok := units[calledOf(e, "time")]
		return d, ok
	case *ast.BinaryExpr:
		x, ok := duration(e.X, lookup, depth+1)
		y, also := duration(e.Y, lookup, depth+1)
		switch {
		case !ok || !also:
		case e.Op == token.MUL:
			return x * y, true
		case e.Op == token.ADD:
			return x + y, true
		case e.Op == token.QUO && y != 0:
			return x / y, true
		}
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Add" && len(e.Args) == 1 {
			if now, ok := f.X.(*ast.CallExpr); ok && calledOf(now.Fun, "time") == "Now" {
				return duration(e.Args[0], lookup, depth+1)
			}
		}
	}
	return 0, false
}

func TestShortBounds(t *testing.T) {
	for body, found := range map[string]int{
		`require.Eventually(t, cond, time.Minute, time.Millisecond)`:              1,
		`assert.EventuallyWithT(t, cond, 2*time.Second, tick)`:                    1,
		`require.Eventually(t, cond, netnstest.Patience, time.Millisecond)`:       0,
		`require.Eventually(t, cond, 5*time.Minute, time.Millisecond)`:            0,
		`context.WithTimeout(ctx, 3*time.Minute)`:                                 1,
		`context.WithTimeout(ctx, 0)`:                                             0,
		`context.WithTimeout(ctx, patience)`:                                      0,
		`context.WithTimeout(ctx, soon)`:                                          1,
		`const mine = 2 * soon; context.WithTimeout(ctx, mine)`:                   1,
		`select { case <-done: case <-time.After(time.Second): t.Fatal("late") }`: 1,
		`c.SetReadDeadline(time.Now().Add(10 * time.Second))`:                     1,
		`c.SetReadDeadline(time.Now())`:                                           0,
		`net.DialTimeout("tcp", addr, time.Second)`:                               1,
		`d := net.Dialer{Timeout: 5 * time.Second}; d.Dial("tcp", addr)`:          1,
		`c := http.Client{Timeout: time.Second}; c.Get(url)`:                      1,
		`proctest.Poll(time.Minute, func() error { return nil })`:                 1,
		`assert.Never(t, cond, time.Second, time.Millisecond)`:                    1,
		`k8s.Never()`: 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\nconst soon = 3*time.Second\nvar patience = netnstest.Patience\nfunc f() {\n"+body+"\n}", 0)
		require.NoError(t, err, body)
		assert.Len(t, shortBounds(file, constantsOf(file)), found, body)
	}
}
