package redirectcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// liveCommand makes a command that works in the pod's network namespace. It closes the namespace after run.
func (p Program) liveCommand(use, short string, run func(*common, *cobra.Command, *netnsexec.NetNS) error) *cobra.Command {
	cmd, c := p.newCommand(use, short, func(c *common, cmd *cobra.Command) error {
		return c.inNetNS(func(ns *netnsexec.NetNS) error { return run(c, cmd, ns) })
	})
	c.withNetNS(cmd)
	c.ruleFlags = addRuleFlags(cmd.Flags())
	return cmd
}

// chosen opens the backend. The sandbox hides the host's name service and xtables lock.
func (c *common) chosen(cmd *cobra.Command, ns *netnsexec.NetNS) (apply.Backend, error) {
	return apply.Choose(cmd.Context(), ns, apply.Options{Backend: c.backend, Runner: ns.Sandbox(), Root: c.hostRoot})
}

// selected explains the pod and prints what is to be known of it, with nothing about one outside the mesh. comment begins the line about the
// configuration.
func (c *common) selected(ns *netnsexec.NetNS, comment, nothing string) (*target, error) {
	t, err := c.target(ns)
	if err != nil {
		return nil, err
	}
	c.warn(t)
	printers.Configuration(c.Stdout, comment, c.config)
	if !t.Decision.Selected {
		visible.To(c.Stdout).Printf("%s%s\n", printers.Unselected(t.Explanation), nothing)
	}
	return t, nil
}

func runApply(c *common, cmd *cobra.Command, ns *netnsexec.NetNS) error {
	t, err := c.selected(ns, "# ", "; nothing applied")
	switch {
	case err != nil || !t.Decision.Selected:
		return err
	case t.action.removeOnly && !t.action.skipApply:
		if err := c.remove(cmd, ns, t.Plan.Redirect.Names, t.action.dryRun); err != nil || t.action.dryRun {
			return err
		}
	case t.action.dryRun:
		visible.To(c.Stdout).Text(explain.RulesText(t.Plan.Ruleset))
		return nil
	case t.action.skipApply:
		visible.To(c.Stdout).Printf("nothing applied: --skip-rule-apply\n")
	default:
		backend, err := c.chosen(cmd, ns)
		if err != nil {
			return err
		}
		result, err := backend.Apply(cmd.Context(), t.Plan.Ruleset)
		if err != nil {
			return err
		}
		c.sayApplied(t, result)
		for _, d := range result.Past {
			visible.To(c.Stdout).Printf("%s\n", d)
		}
		if err := result.Bypassed(); err != nil {
			return err
		}
	}
	if t.action.runValidation {
		return c.validate(cmd, t, ns)
	}
	return nil
}

func (c *common) sayApplied(t *target, r apply.Result) {
	out, did := visible.To(c.Stdout), "applied"
	if !r.Changed {
		did = "already in force"
	}
	for _, f := range ruleset.Families {
		if p := t.Plan.Ruleset.Family(f); p != nil {
			out.Printf("%s: %d %s rules, with %s\n", did, p.NumRules(), f, r.Backend)
		}
	}
	for _, f := range r.Skipped {
		out.Printf("%s is not there, so its rules are left out\n", f)
	}
	for _, u := range r.Unusable {
		out.Printf("%s\n", u)
	}
}

func runCheck(c *common, cmd *cobra.Command, ns *netnsexec.NetNS) error {
	t, err := c.selected(ns, "", "")
	if err != nil {
		return err
	}
	want := []ruleset.Ruleset{t.Plan.Ruleset}
	if !t.Decision.Selected {
		want = nil
		for _, names := range c.names() {
			want = append(want, names.Owner().EmptyRuleset())
		}
	}
	backend, err := c.chosen(cmd, ns)
	if err != nil {
		return err
	}
	var diffs []ruleset.Difference
	for _, rs := range want {
		more, err := backend.Check(cmd.Context(), rs)
		if err != nil {
			return err
		}
		for _, d := range more {
			if !slices.Contains(diffs, d) { // two meshes may call their chains alike
				diffs = append(diffs, d)
			}
		}
	}
	past := false
	if t.Decision.Selected {
		var unknown []ruleset.Difference
		past, unknown = c.bypasses(ns, t)
		diffs = append(diffs, unknown...)
	}
	if past && len(diffs) == 0 || !c.inForce(backend, diffs) || past {
		return errSilent
	}
	return nil
}

// inForce prints the differences between live and wanted rules, and reports whether those are in force as far as that can be told.
func (c *common) inForce(backend apply.Backend, diffs []ruleset.Difference) bool {
	for _, d := range diffs {
		visible.To(c.Stdout).Printf("%s\n", d)
	}
	differ, unknown := ruleset.Certain(diffs), len(diffs)-len(ruleset.Certain(diffs))
	switch {
	case slices.ContainsFunc(differ, func(d ruleset.Difference) bool { return d.Kind != ruleset.KindFate }):
		visible.To(c.Stderr).Printf(c.name()+": the live rules differ from the wanted ones in %d places\n", len(differ))
		return false
	case len(differ) > 0:
		visible.To(c.Stderr).Printf(c.name()+": the rules are there (%s), and what others have beside them keeps packets from them: %d kinds of connections\n", backend.Name(), len(differ))
		return false
	case unknown > 0:
		visible.To(c.Stdout).Printf("the rules are there (%s), but whether packets come to them cannot be told of %d kinds of connections\n", backend.Name(), unknown)
	default:
		visible.To(c.Stdout).Printf("the live rules are as wanted (%s)\n", backend.Name())
	}
	return true
}

// names returns the dialects' names in the kernel, those of each mesh once.
func (c *common) names() (all []redirect.Names) {
	for d := range c.meshes.All() {
		if !slices.ContainsFunc(all, func(n redirect.Names) bool { return reflect.DeepEqual(n, d.Names) }) {
			all = append(all, d.Names)
		}
	}
	return all
}

// runCleanup goes by the names of chains alone, so it also works for a pod that is refused or has left the mesh.
func runCleanup(c *common, cmd *cobra.Command, ns *netnsexec.NetNS) error {
	for _, names := range c.names() {
		b, _, err := c.build(redirect.Redirect{Names: names}, []string{"inbound-tproxy-mark", "inbound-tproxy-route-table", "dry-run"})
		if err != nil {
			return err
		}
		if err := c.remove(cmd, ns, b.Names, b.dryRun); err != nil {
			return err
		}
	}
	return nil
}

func (c *common) remove(cmd *cobra.Command, ns *netnsexec.NetNS, names redirect.Names, dryRun bool) error {
	if dryRun {
		visible.To(c.Stdout).Printf("would remove chains named %s*, the rules that lead to them, and routing by mark %#x\n", names.ChainPrefix, names.InboundMark)
		return nil
	}
	backend, err := c.chosen(cmd, ns)
	if err != nil {
		return err
	}
	if err := backend.Remove(cmd.Context(), names.Owner()); err != nil {
		return err
	}
	visible.To(c.Stdout).Printf("removed: chains named %s* and all that leads to them, with %s\n", names.ChainPrefix, backend.Name())
	return nil
}

func runValidate(c *common, cmd *cobra.Command, ns *netnsexec.NetNS) error {
	t, err := c.selected(ns, "", "; nothing to validate")
	if err != nil || !t.Decision.Selected {
		return err
	}
	file, err := cmd.Flags().GetString(reportFile)
	if err == nil && file != "" {
		err = c.reportTo(file)
	}
	if err != nil {
		return err
	}
	wait, err := cmd.Flags().GetDuration(fromOutside)
	if err != nil || wait <= 0 {
		return errors.Join(err, c.validate(cmd, t, ns))
	}
	// The proxy's user may see nothing from inside. Then the connection from outside is all of the proof.
	if err := c.validate(cmd, t, ns); err != nil && !errors.Is(err, validate.ErrNothingTested) {
		return err
	}
	report, err := validate.FromOutside(cmd.Context(), validate.Options{Redirect: t.Plan.Redirect, ProbePort: c.probePort(t), Timeout: wait, Namespace: ns})
	return c.validated(report, err)
}

// The flags of validate.
const (
	fromOutside = "from-outside"
	reportFile  = "report"
)

// maxReport bounds what is read of another run's report, in bytes. One has a line for each trial.
const maxReport = 64 << 10

// reportTo prints what the file has, of another container of the pod whose output nobody sees, or else has all output go there too.
func (c *common) reportTo(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) //nolint:gosec // another user reads it
	if err == nil {
		c.Stdout = io.MultiWriter(c.Stdout, f)
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--%s: %w", reportFile, err)
	}
	before, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("--%s: %w", reportFile, err)
	}
	defer func() { _ = before.Close() }()
	text, err := io.ReadAll(io.LimitReader(before, maxReport))
	visible.To(c.Stdout).Text(string(text))
	return err
}

func (p Program) validateCommand() *cobra.Command {
	cmd := p.liveCommand("validate [-f pod.yaml | flags]", "Prove with real connections, from inside the pod, that redirection works", runValidate)
	cmd.Flags().String(reportFile, "", "a file, of a volume of the pod, for what it says; of one that is there already it says what that has, first")
	cmd.Flags().Duration(fromOutside, 0, "then wait as long for a connection from outside to the probe's port, such as a kubelet's, to arrive at the proxy")
	return cmd
}

// probePort is the destination of trial connections; 0: the default.
func (c *common) probePort(t *target) uint16 {
	return cmp.Or(t.action.probePort, t.mesh.Check.ProbePort)
}

func (c *common) validated(report validate.Report, err error) error {
	visible.To(c.Stdout).Text(report.String())
	var missing *validate.MissingError
	if errors.As(err, &missing) {
		visible.To(c.Stderr).Printf("%s: %v\n", c.name(), err)
		return cli.Exit(exitMissing)
	}
	return err
}

func (c *common) validate(cmd *cobra.Command, t *target, ns *netnsexec.NetNS) error {
	report, err := validate.Run(cmd.Context(), validate.Options{
		Redirect: t.Plan.Redirect, ProbePort: c.probePort(t), Timeout: t.action.probeTimeout, Namespace: ns,
	})
	if errors.Is(err, validate.ErrNothingTested) {
		err = fmt.Errorf("validate: %w; with --%s it waits for a connection from outside", err, fromOutside)
	}
	return c.validated(report, err)
}
