package printers

import (
	"io"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/status"
)

// Code prints what a code means, what to do, and where more is written. A code of several kinds has several meanings.
func Code(w io.Writer, id meshcni.Identity, code string, asJSON bool) error {
	rows := status.Rows(status.Code(code))
	for i := range rows {
		rows[i] = rows[i].For(id)
	}
	switch {
	case len(rows) == 0:
		return cli.Usagef("%q: not a code of this version; see %s and %s", code, id.Page("troubleshooting.md"), id.Page("check.md"))
	case asJSON:
		return JSON(w, rows)
	}
	out := visible.To(w)
	for _, r := range rows {
		out.Printf("%s (%s): %s\n", r.Code, r.Kind, r.Sentence)
		for _, do := range r.Do {
			out.Printf("  - %s\n", do)
		}
		out.Printf("  %s\n", r.URL(id))
	}
	return out.Err()
}
