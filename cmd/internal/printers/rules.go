package printers

import (
	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/apply"
)

// Rules prints the pod's rules.
type Rules struct{ format, family string }

// Describe gives the command its texts and flags.
func (r *Rules) Describe(cmd *cobra.Command) {
	cmd.Short = "Print the pod's rules"
	cmd.Flags().Var(cli.Choice(&r.format, "iptables", "nft", "json", "mermaid"), "format", "iptables, nft, json or mermaid")
	cmd.Flags().Var(cli.Choice(&r.family, "all", "4", "6"), "family", "4, 6 or all")
}

// Print prints as the flags say.
func (r *Rules) Print(s Streams, x explain.Explanation) error {
	if x.Err() != nil {
		return x.Err()
	}
	Warn(s.Err, x)
	if !x.Decision.Selected {
		// Out is for rules alone.
		visible.To(s.Err).Printf("%s; it has no rules\n", Unselected(x))
	}
	switch r.format {
	case "iptables", "nft":
		Configuration(s.Out, "# ", x.Configuration)
	default: // JSON has no comments, and a chart begins with its kind
		Configuration(s.Err, "", x.Configuration)
	}
	rs := x.Plan.Ruleset
	switch r.family {
	case "4":
		rs.IPv6 = nil
	case "6":
		rs.IPv4 = nil
	}
	out := visible.To(s.Out)
	switch r.format {
	case "iptables":
		if _, err := x.Plan.Ruleset.Iptables(); err != nil {
			return err
		}
		out.Text(explain.RulesText(rs))
	case "nft":
		out.Text(apply.NFT(rs))
	case "json":
		return JSON(s.Out, rs)
	case "mermaid":
		out.Text(mermaid(rs, nil))
	}
	return out.Err()
}
