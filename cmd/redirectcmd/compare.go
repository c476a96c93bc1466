package redirectcmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
)

func (p Program) compareCommand() *cobra.Command {
	var from, output string
	cmd, _ := p.newCommand("compare -f pod.yaml --from-rules saved.txt",
		"List every packet and connection whose fate differs between a live pod's saved rules and ours", func(c *common, cmd *cobra.Command) error {
			if from == "" {
				return cli.Usagef("--from-rules is required: what iptables-save and ip6tables-save print in the live pod")
			}
			if from == "-" && c.inputs() > 0 {
				return cli.Usagef("--from-rules: only one file can be standard input")
			}
			return runCompare(cmd.Context(), c, from, output)
		})
	cmd.Long = `compare reads the rules that another mesh's program has set in a live pod, as
iptables-save and ip6tables-save print them. It traces one packet of every kind
that these or our rules tell apart, and the connection that it opens, both ways. It exits 0 when both treat all alike, and 1 when a packet's fate or a connection
differs, or when rules are not understood; those are listed.

It does not compare:
` + "  - " + strings.Join(compare.Blind(), "\n  - ")
	fs := cmd.Flags()
	fs.StringVar(&from, "from-rules", "", "what iptables-save and ip6tables-save print; - is standard input")
	fs.VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func runCompare(ctx context.Context, c *common, from, output string) error {
	t, err := c.target(nil)
	if err != nil {
		return err
	}
	c.warn(t)
	text, err := c.streams().Read(from)
	if err != nil {
		return err
	}
	live, err := compare.Parse(string(text))
	if err != nil {
		return fmt.Errorf("--from-rules: %w", err)
	}
	result, err := t.CompareLive(ctx, live)
	if err != nil {
		return fmt.Errorf("--from-rules: %w", err)
	}
	if output == "json" {
		err = printers.JSON(c.Stdout, result)
	} else {
		printers.Configuration(c.Stdout, "", c.config)
		_, err = result.WriteTo(c.Stdout)
	}
	if err == nil && !result.Same() {
		return errSilent
	}
	return err
}
