package explain

import "github.com/meshcni/meshcni/internal/text/visible"

// Print is how [Explanation.WriteTo] writes.
func (x Explanation) Print(w *visible.Printer) {
	x.Verdict.print(w)
	x.print(w)
}
