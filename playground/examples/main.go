// Command examples writes the page's examples, as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/meshcni/meshcni/internal/playground"
)

func main() {
	if err := json.NewEncoder(os.Stdout).Encode(playground.Examples()); err != nil {
		fmt.Fprintf(os.Stderr, "examples: %v\n", err)
		os.Exit(1)
	}
}
