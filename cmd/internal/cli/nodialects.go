package cli

import (
	"io"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/visible"
)

// DialectUsage describes the flag --dialect of programs that know these dialects.
func DialectUsage(known []dialect.Dialect) string {
	usage := "the mesh: " + strings.Join(dialect.SetOf(known...).Names(), ", ")
	if len(known) > 1 {
		usage += "; of several, separated by commas, the first that selects a pod has it"
	}
	return usage
}

// NoDialects reports that a program was built with an empty list of dialects, of which no flag could name one, and returns its
// exit code.
func NoDialects(stderr io.Writer, program string) int {
	visible.To(stderr).Printf("%s: %v: the program's Dialects are an empty list\n", program, dialect.Validate(nil))
	return ExitFailed
}
