//go:build js

// Command wasm is the playground's engine for browsers: it gives the page one function, which answers a request in JSON.
package main

import (
	"runtime/debug"
	"syscall/js"

	"github.com/meshcni/meshcni/internal/playground/engine"
)

func main() {
	// The collector shares the only thread. A look leaves some MiB of garbage, so it need not come at each.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(128 << 20)
	js.Global().Set("meshcni", js.FuncOf(func(_ js.Value, args []js.Value) any {
		if len(args) != 1 {
			return `{"error": {"text": "one argument is wanted, a request in JSON"}}`
		}
		return string(engine.Answer([]byte(args[0].String())))
	}))
	select {} // the function is called for as long as the page is open
}
