package cli

import (
	"io"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/visible"
)

// NoDialects reports that a program was built with an empty list of dialects, of which no flag could name one, and returns its
// exit code.
func NoDialects(stderr io.Writer, program string) int {
	visible.To(stderr).Printf("%s: %v: the program's Dialects are an empty list\n", program, dialect.List{}.Validate())
	return ExitFailed
}
