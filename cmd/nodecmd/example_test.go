//go:build linux

package nodecmd_test

import (
	"context"
	"fmt"
	"os"

	"github.com/meshcni/meshcni/cmd/nodecmd"
)

// The program is a function: what it would read of the operating system is given.
func ExampleProgram() {
	app := nodecmd.Program{
		Env:    func(key string) (string, bool) { return "nftables", key == "MESHCNI_BACKEND" },
		Stderr: os.Stdout,
	}
	code := app.Main(context.Background(), []string{"install", "--once", "--dialect", "esperanto"})
	fmt.Println("exit code", code)
	// Output:
	// meshcni-node: dialect: unknown dialect "esperanto": known is istio, ambient, linkerd, kuma, consul
	// meshcni-node: see --help
	// exit code 2
}
