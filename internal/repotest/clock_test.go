package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sleepers may sleep on the real clock.
var sleepers = map[string]string{
	"netnsexec/main_linux_test.go":             "a child process whose only purpose is to be still there",
	"repair/integration/slow_linux_test.go":    "an API server that takes its time",
	"internal/nodecontrol/bench_linux_test.go": "a benchmark of what an agent costs while time passes",
}

// TestNoSleeps: a test that waits for the clock is slow where it works and
// fails where it doesn't. In a bubble of testing/synctest time is made up.
func TestNoSleeps(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() && sleepers[s.path] == "" && !strings.Contains(s.text, `"testing/synctest"`) {
			for _, at := range clockWaits(s.file) {
				assert.Fail(t, "waits for the clock; wait for what it waits for", "%s", s.fset.Position(at))
			}
		}
	}
}

// clockWaits finds what lets time pass: a sleep, and a timer whose end is
// anything but the failure of the test. A timer that ends a wait for something
// else is how long the test has patience.
func clockWaits(file *ast.File) (waits []token.Pos) {
	for _, decl := range file.Decls {
		patience := map[ast.Node]bool{} // calls that make a timer
		holders := map[string]bool{}    // variables that hold one
		ast.Inspect(decl, func(n ast.Node) bool {
			if clause, ok := n.(*ast.CommClause); ok && fails(clause.Body) {
				switch from := receivedFrom(clause.Comm).(type) {
				case *ast.Ident:
					holders[from.Name] = true
				case *ast.CallExpr:
					patience[from] = true
				}
			}
			return true
		})
		ast.Inspect(decl, func(n ast.Node) bool {
			if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Lhs) == 1 && len(assign.Rhs) == 1 {
				if id, ok := assign.Lhs[0].(*ast.Ident); ok && holders[id.Name] {
					patience[assign.Rhs[0]] = true
				}
			}
			return true
		})
		ast.Inspect(decl, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				switch calledOf(call.Fun, "time") {
				case "Sleep":
					waits = append(waits, n.Pos())
				case "After", "NewTimer", "Tick":
					if !patience[n] {
						waits = append(waits, n.Pos())
					}
				}
			}
			return true
		})
	}
	return waits
}

// receivedFrom is what a case of a select receives from: a call, or the
// variable of a channel or timer.
func receivedFrom(comm ast.Stmt) ast.Node {
	expr, ok := comm.(*ast.ExprStmt)
	if !ok {
		return nil
	}
	receive, ok := expr.X.(*ast.UnaryExpr)
	if !ok || receive.Op != token.ARROW {
		return nil
	}
	if sel, ok := receive.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "C" {
		return sel.X
	}
	return receive.X
}

var failure = regexp.MustCompile(`^(Fatal|Fatalf|Fail|FailNow|Failf|FailNowf|Error|Errorf|panic)$`)

// fails reports whether the first thing done is to fail.
func fails(body []ast.Stmt) bool {
	if len(body) == 0 {
		return false
	}
	expr, ok := body[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return failure.MatchString(f.Name)
	case *ast.SelectorExpr:
		return failure.MatchString(f.Sel.Name)
	}
	return false
}

// of is the name of what an expression takes from a package.
func calledOf(fun ast.Expr, pkg string) string {
	if sel, ok := fun.(*ast.SelectorExpr); ok {
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == pkg {
			return sel.Sel.Name
		}
	}
	return ""
}

func TestClockWaits(t *testing.T) {
	for body, waits := range map[string]int{
		`time.Sleep(d)`:           1,
		`<-time.After(d)`:         1,
		`x := time.After(d); <-x`: 1,
		`kill := time.After(time.Duration(rand.IntN(9))); for { select { case <-kill: return; case <-time.After(d): write() } }`: 2,
		`timer := time.NewTimer(d); select { case <-timer.C: t.Log("now"); case <-done: }`:                                       1,
		`select { case <-done: case <-time.After(d): assert.Empty(t, seen) }`:                                                    1,
		`for range time.Tick(d) { look() }`:                                                                      1,
		`select { case <-done: case <-time.After(d): t.Fatal("not in time") }`:                                   0,
		`select { case x := <-c: use(x); case <-time.After(d): require.Fail(t, "no") }`:                          0,
		`end := time.After(d); for { select { case <-end: panic("no"); case <-done: return } }`:                  0,
		`timer := time.NewTimer(d); defer timer.Stop(); select { case <-timer.C: t.Errorf("no"); case <-done: }`: 0,
		`require.Eventually(t, cond, time.Minute, time.Millisecond)`:                                             0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\nfunc f() {\n"+body+"\n}", 0)
		require.NoError(t, err, body)
		assert.Len(t, clockWaits(file), waits, body)
	}
}
