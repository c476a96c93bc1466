package redirectcmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

func (p Program) explainCommand() *cobra.Command {
	var output string
	cmd, _ := p.newCommand("explain -f pod.yaml", "Say whether the pod is in the mesh, why, where each setting comes from, and what the rules are",
		func(c *common, cmd *cobra.Command) error { return runExplain(cmd.Context(), c, output) })
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func runExplain(ctx context.Context, c *common, output string) error {
	t, err := c.target(ctx, nil)
	if t.Pod == nil {
		return err
	}
	x, err := t.Explain(c.dialects, c.config, err)
	if err != nil {
		return err // no decision was reached: a file cannot be read, say
	}
	if c.decision != nil {
		*c.decision = x.Decision
	}
	if output == "json" {
		err = printJSON(c.Stdout, x)
	} else {
		err = x.Print(c.Stdout)
	}
	if err == nil && x.Refused != nil {
		return errSilent
	}
	return err
}
