package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// DialectUsage describes the flag --dialect of programs that know these dialects.
func DialectUsage(known []dialect.Dialect) string {
	usage := "the mesh: " + strings.Join(dialect.SetOf(known...).Names(), ", ")
	if len(known) > 1 {
		usage += "; of several, separated by commas, the first that selects a pod has it"
	}
	return usage
}

// NoDialects returns an error for an empty list of dialects, of which no flag could name one.
func NoDialects(known []dialect.Dialect) error {
	if len(known) > 0 {
		return nil
	}
	return fmt.Errorf("%w: the program's Dialects are an empty list", dialect.Validate(nil))
}

// Invalid prints what is wrong with a program itself, which no flag mends, and reports whether something is. Such a program exits with
// [ExitFailed].
func Invalid(stderr io.Writer, program string, errs ...error) bool {
	err := errors.Join(errs...)
	out := visible.To(stderr)
	for _, line := range visible.Lines(err) {
		out.Printf("%s: %s\n", program, line)
	}
	return err != nil
}
