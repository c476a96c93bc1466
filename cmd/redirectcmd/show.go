package redirectcmd

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

func (p Program) showCommand() *cobra.Command {
	var show printers.Show
	var pid uint32
	cmd, c := p.newCommand("show [--netns PATH | --pid N] [-f pod.yaml]", "Show a pod's live rules, what each has matched, and why it is there",
		func(c *common, cmd *cobra.Command) error {
			if pid != 0 {
				if c.netns != "" {
					return cli.Usagef("--netns and --pid: only one of them can name the namespace")
				}
				c.netns = fmt.Sprintf("/proc/%d/ns/net", pid)
			}
			if err := show.Check(); err != nil {
				return err
			}
			return c.inNetNS(func(ns *netnsexec.NetNS) error {
				wanted, err := c.owned(ns)
				if err != nil {
					return err
				}
				printers.Configuration(c.Stderr, "", c.config) // standard output is a list, in JSON too
				return show.Print(cmd.Context(), c.Stdout, c.clear, func() (seen printers.Seen, err error) {
					if seen.Live, err = apply.Live(cmd.Context(), ns, apply.Options{Root: c.hostRoot}, wanted...); err != nil {
						return seen, err
					}
					seen.Find(bypass.Told(bypass.Live(ns, c.addrs)))
					if c.file == "" || !captures(wanted[0]) {
						return seen, nil
					}
					backend, err := c.chosen(cmd, ns)
					if err != nil {
						return seen, err
					}
					diffs, err := backend.Check(cmd.Context(), wanted[0])
					seen.Find(nil, diffs)
					return seen, err
				})
			})
		})
	c.optional = true
	c.withNetNS(cmd)
	cmd.Flags().Uint32Var(&pid, "pid", 0, "a process of the pod, instead of --netns")
	show.Describe(cmd)
	cmd.Long = `show lists the rules of both iptables variants and of nftables that are in a
network namespace now, and what of the wanted ones is not in force. With -f each rule of the pod's plan has the reason that
the plan gives. Without it, rules that most pods of --dialect have still do.
nftables counts only where a rule says so; the plugin's rules for it do not.`
	return cmd
}

// captures reports whether the ruleset has any rules.
func captures(rs ruleset.Ruleset) bool {
	return slices.ContainsFunc(ruleset.Families[:], func(f ruleset.Family) bool { return rs.Family(f) != nil && len(rs.Family(f).Chains) > 0 })
}

// owned returns the rulesets that recognize and explain live rules: the pod's, or
// without a pod those of every dialect and of a usual pod.
func (c *common) owned(ns *netnsexec.NetNS) ([]ruleset.Ruleset, error) {
	if c.file != "" {
		t, err := c.target(ns)
		if err != nil {
			return nil, err
		}
		c.warn(t)
		if t.Decision.Selected {
			return []ruleset.Ruleset{t.Plan.Ruleset}, nil
		}
		visible.To(c.Stderr).Printf("%s; it should have no rules\n", printers.Unselected(t.Explanation))
		return c.owners(), nil
	}
	return append(c.owners(), c.usual()...), nil // the last ruleset that has a rule explains it
}

// owners returns, for each mesh, a ruleset that is empty but for its owner.
func (c *common) owners() (all []ruleset.Ruleset) {
	for _, d := range c.Dialects {
		all = append(all, d.Names.Owner().EmptyRuleset())
	}
	return all
}

// usual returns the rules of a pod without settings, of each mesh. Most pods have most of these rules, so they can explain live ones.
func (c *common) usual() (all []ruleset.Ruleset) {
	for _, d := range slices.Backward(slices.Collect(c.meshes.All())) { // the last one that explains a rule does so
		built, err := d.Redirect(&corev1.Pod{}, nil, c.addrs)
		if err != nil {
			continue
		}
		built.Redirect.IPv4, built.Redirect.IPv6 = redirect.FamilyCapture, redirect.FamilyCapture
		if rs, err := built.Redirect.Ruleset(); err == nil {
			all = append(all, rs)
		}
	}
	return all
}
