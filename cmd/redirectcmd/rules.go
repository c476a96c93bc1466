package redirectcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

func (p Program) rulesCommand() *cobra.Command {
	var format, family string
	cmd, c := p.newCommand("rules (-f pod.yaml | flags)", "Print the pod's rules", func(c *common, cmd *cobra.Command) error {
		return runRules(c, format, family)
	})
	c.templates = true
	c.ruleFlags = addRuleFlags(cmd.Flags())
	cmd.Flags().Var(cli.Choice(&format, "iptables", "nft", "json", "mermaid"), "format", "iptables, nft, json or mermaid")
	cmd.Flags().Var(cli.Choice(&family, "all", "4", "6"), "family", "4, 6 or all")
	return cmd
}

func runRules(c *common, format, family string) error {
	t, err := c.target(nil)
	if err != nil {
		return err
	}
	c.warn(t)
	if !t.Decision.Selected {
		// stdout is for rules alone.
		visible.To(c.Stderr).Printf("%s; it has no rules\n", t.unselected())
	}
	switch format {
	case "iptables", "nft":
		c.sayConfig(c.Stdout, "# ")
	default: // JSON has no comments, and a chart begins with its kind
		c.sayConfig(c.Stderr, "")
	}
	rs := t.Plan.Ruleset
	switch family {
	case "4":
		rs.IPv6 = nil
	case "6":
		rs.IPv4 = nil
	}
	switch format {
	case "iptables":
		visible.To(c.Stdout).Text(explain.RulesText(rs))
	case "nft":
		visible.To(c.Stdout).Text(apply.NFT(rs))
	case "json":
		return printJSON(c.Stdout, rs)
	case "mermaid":
		visible.To(c.Stdout).Text(mermaid(rs, nil))
	}
	return nil
}

// mermaid returns the chart of a single family, or Markdown with a chart for each of two.
func mermaid(rs ruleset.Ruleset, r *trace.Result) string {
	var b strings.Builder
	for _, f := range ruleset.Families {
		if rs.Program(f) == nil {
			continue
		}
		chart := trace.Mermaid(rs, f, r)
		if rs.IPv4 == nil || rs.IPv6 == nil {
			return chart
		}
		fmt.Fprintf(&b, "## %s\n\n```mermaid\n%s```\n\n", f, chart)
	}
	return b.String()
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
