package printers

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
)

// Explain prints what becomes of a pod: all of it, or the verdict alone.
type Explain struct {
	Output string
	Brief  bool
}

// Describe gives the command its flags.
func (e *Explain) Describe(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&e.Brief, "brief", false, "only whether the pod is captured, why, and what to do")
	cmd.Flags().VarP(cli.Choice(&e.Output, "text", "json"), "output", "o", "text or json")
}

// Print prints as the flags say.
func (e *Explain) Print(w io.Writer, x explain.Explanation) (err error) {
	switch {
	case e.Output == "json" && e.Brief:
		err = JSON(w, x.Verdict)
	case e.Output == "json":
		err = JSON(w, x)
	case e.Brief:
		_, err = x.Verdict.WriteTo(w)
	default:
		_, err = x.WriteTo(w)
	}
	return err
}
