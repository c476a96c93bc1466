package redirectcmd

import (
	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

func (p Program) explainCommand() *cobra.Command {
	var output string
	var brief bool
	cmd, c := p.newCommand("explain -f pod.yaml", "Say whether the pod is captured, why, and what to do; then where each setting comes from, and what the rules are",
		func(c *common, cmd *cobra.Command) error { return runExplain(c, output, brief) })
	c.templates = true
	cmd.Flags().BoolVar(&brief, "brief", false, "only whether the pod is captured, why, and what to do")
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func runExplain(c *common, output string, brief bool) error {
	t, err := c.explained(nil)
	if err != nil {
		return err // no decision was reached: a file cannot be read, say
	}
	x := t.Explanation
	if c.out != nil {
		*c.out = x
	}
	switch {
	case c.out != nil && output != "json": // the caller says the verdict
		if !brief {
			err = x.WriteDetails(c.Stdout)
		}
	case output == "json" && brief:
		err = printJSON(c.Stdout, x.Verdict)
	case output == "json":
		err = printJSON(c.Stdout, x)
	case brief:
		_, err = x.Verdict.WriteTo(c.Stdout)
	default:
		_, err = x.WriteTo(c.Stdout)
	}
	if err == nil && x.Refused != nil {
		return errSilent
	}
	return err
}
