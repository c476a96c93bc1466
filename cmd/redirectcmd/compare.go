package redirectcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/redirect/compare"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

func (p Program) compareCommand() *cobra.Command {
	var from, output string
	cmd, _ := p.newCommand("compare -f pod.yaml --from-rules saved.txt",
		"List every packet and connection whose fate differs between a live pod's saved rules and ours", func(c *common, cmd *cobra.Command) error {
			if from == "" {
				return cli.Usagef("--from-rules is required: what iptables-save and ip6tables-save, or nft list ruleset, print in the live pod")
			}
			if from == "-" && c.inputs() > 0 {
				return cli.Usagef("--from-rules: only one file can be standard input")
			}
			return runCompare(c, from, output)
		})
	cmd.Long = `compare reads the rules that another mesh's program has set in a live pod, as
iptables-save and ip6tables-save print them, or nft list ruleset if the program
writes to nftables directly. It traces one packet of every kind that these or our
rules tell apart, and the connection that it opens, both ways. It exits 0 when both treat all alike, and 1 when a packet's fate or a connection
differs, or when rules are not understood; those are listed.

It does not compare:
` + "  - " + strings.Join(compare.Blind(), "\n  - ")
	fs := cmd.Flags()
	fs.StringVar(&from, "from-rules", "", "what iptables-save and ip6tables-save, or nft list ruleset, print; - is standard input")
	fs.VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func runCompare(c *common, from, output string) error {
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
	result, err := t.CompareLive(live)
	if err != nil {
		return fmt.Errorf("--from-rules: %w", err)
	}
	if output == "json" {
		if err := printers.JSON(c.Stdout, result); err != nil {
			return err
		}
	} else {
		c.printComparison(t, result)
	}
	if !result.Same() {
		return errSilent
	}
	return nil
}

func (c *common) printComparison(t *target, result explain.Comparison) {
	printers.Configuration(c.Stdout, "", c.config)
	if !t.Decision.Selected {
		visible.To(c.Stdout).Printf("%s; ours are no rules\n", printers.Unselected(t.Explanation))
	}
	if len(result.Foreign) > 0 {
		visible.To(c.Stdout).Text((&ruleset.ForeignError{Rules: result.Foreign}).Error() + "\n")
		return
	}
	for _, d := range result.Differences {
		visible.To(c.Stdout).Printf("%s: %s\n  saved  %s: %s\n  ours   %s: %s\n", d.Kind(), compare.Describe(d.Packet), d.A, d.A.Reason, d.B, d.B.Reason)
	}
	for _, d := range result.ConnectionDifferences {
		visible.To(c.Stdout).Printf("%s\n  saved  %s: %s\n  ours   %s: %s\n", d, d.A.Verdict, d.A.Reason, d.B.Verdict, d.B.Reason)
	}
	if n := len(result.ConnectionDifferences); n > 0 {
		visible.To(c.Stdout).Printf("%d of %d connections go otherwise after the same first packet\n", n, result.Connections)
	}
	if len(result.Differences) == 0 && len(result.ConnectionDifferences) == 0 {
		visible.To(c.Stdout).Printf("the same: %d packets, one of each kind that the rules tell apart, and %d connections, both ways\n", result.Packets, result.Connections)
	} else {
		visible.To(c.Stdout).Printf("%d of %d packets differ\n", len(result.Differences), result.Packets)
	}
	for _, blind := range result.NotCompared {
		visible.To(c.Stdout).Printf("  not compared: %s\n", blind)
	}
}
