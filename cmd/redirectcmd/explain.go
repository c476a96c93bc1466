package redirectcmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/visible"
)

func (p Program) explainCommand() *cobra.Command {
	var output string
	var brief bool
	cmd, c := p.newCommand("explain -f pod.yaml", "Say whether the pod is captured, why, and what to do; then where each setting comes from, and what the rules are",
		func(c *common, cmd *cobra.Command) error { return runExplain(cmd.Context(), c, output, brief) })
	c.templates = true
	cmd.Flags().BoolVar(&brief, "brief", false, "only whether the pod is captured, why, and what to do")
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func runExplain(ctx context.Context, c *common, output string, brief bool) error {
	t, err := c.target(ctx, nil)
	if t.Pod == nil {
		return err
	}
	x, err := t.Explain(c.dialects, c.config, err)
	if err != nil {
		return err // no decision was reached: a file cannot be read, say
	}
	if c.explained != nil {
		*c.explained = x
	}
	switch {
	case c.explained != nil && output != "json": // the caller says the verdict
		if !brief {
			err = x.PrintPlan(visible.To(c.Stdout))
		}
	case output == "json" && brief:
		err = printJSON(c.Stdout, x.Verdict)
	case output == "json":
		err = printJSON(c.Stdout, x)
	case brief:
		x.Verdict.Print(visible.To(c.Stdout))
	default:
		err = x.Print(visible.To(c.Stdout))
	}
	if err == nil && x.Refused != nil {
		return errSilent
	}
	return err
}
