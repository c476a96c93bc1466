package rulesettest_test

import (
	"fmt"
	"testing"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
)

// printer stands in for the *testing.T of a real test.
type printer struct{ testing.TB }

func (printer) Helper()                           {}
func (printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (printer) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// A mesh's test says what its rules are for. The last line is wrong, and the
// test says why.
func Example() {
	var t printer
	mesh := redirect.Default()
	mesh.Outbound.ExcludePorts = redirect.Ports(3306)

	rules := rulesettest.New(t, mesh.MustRuleset(), "10.244.1.5")
	rules.Table(`
		out tcp uid 1000 -> 10.0.0.1:443    => redirect 15001
		out tcp uid 1337 -> 10.0.0.1:443    => pass
		in  tcp -> 10.244.1.5:8080          => redirect 15006
		out tcp uid 1000 -> 10.0.0.1:3306   => redirect 15001
	`)
	// Output:
	// out tcp uid 1000 gid 0 -> 10.0.0.1:3306
	//   want: redirect 15001
	//   got:  pass: outbound port is excluded: passes
	//         nat/OUTPUT:1                 -j MESH_OUTPUT
	//         nat/MESH_OUTPUT:1            -p tcp -m tcp --dport 3306 -j RETURN   # outbound port is excluded
}
