package explain

import "github.com/meshcni/meshcni/internal/visible"

// Closing and Cures are the tables of remedies.
var (
	Closing = closing
	Cures   = cures
)

// Print is how [Explanation.WriteTo] writes.
func (x Explanation) Print(w *visible.Printer) {
	x.Verdict.print(w)
	x.print(w)
}
