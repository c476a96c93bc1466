package redirectcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// showFlags are those of show alone.
type showFlags struct {
	output   string
	watch    bool
	interval time.Duration
}

func (p Program) showCommand() *cobra.Command {
	var f showFlags
	var pid uint32
	cmd, c := p.newCommand("show [--netns PATH | --pid N] [-f pod.yaml]", "Show a pod's live rules, what each has matched, and why it is there",
		func(c *common, cmd *cobra.Command) (err error) {
			if pid != 0 {
				if c.netns != "" {
					return cli.Usagef("--netns and --pid: only one of them can name the namespace")
				}
				c.netns = fmt.Sprintf("/proc/%d/ns/net", pid)
			}
			if f.interval <= 0 {
				return cli.Usagef("--interval %s: not above 0", f.interval)
			}
			ns, err := c.openNetNS()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, ns.Close()) }()
			return runShow(cmd.Context(), c, ns, f)
		})
	c.optional = true
	c.withNetNS(cmd)
	fs := cmd.Flags()
	fs.Uint32Var(&pid, "pid", 0, "a process of the pod, instead of --netns")
	fs.VarP(cli.Choice(&f.output, "text", "json"), "output", "o", "text or json")
	fs.BoolVarP(&f.watch, "watch", "w", false, "show the rules again and again, with what each has matched since")
	fs.DurationVar(&f.interval, "interval", 2*time.Second, "with --watch: how often")
	cmd.Long = `show lists the rules of both iptables variants and of nftables that are in a
network namespace now. With -f each rule of the pod's plan has the reason that
the plan gives. Without it, rules that most pods of --dialect have still do.
nftables counts only where a rule says so; the plugin's rules for it do not.`
	return cmd
}

func runShow(ctx context.Context, c *common, ns *netnsexec.NetNS, f showFlags) error {
	wanted, err := c.owned(ns)
	if err != nil {
		return err
	}
	printers.Configuration(c.Stderr, "", c.config) // standard output is a list, in JSON too
	var before ruleset.Live
	for {
		live, err := apply.Live(ctx, ns, apply.Options{Root: c.hostRoot}, wanted...)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended it
		}
		live.Since(before)
		if f.watch {
			c.clear()
		}
		if f.output == "json" {
			err = errors.Join(printers.JSON(c.Stdout, append(ruleset.Live{}, live...)), err)
		} else {
			err = errors.Join(live.Write(c.Stdout), err)
		}
		if err != nil || !f.watch {
			return err
		}
		before = live
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
	}
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
