package redirectcmd

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// istioCommand is the command that does as Istio's init-container program of that name (pilot-agent istio-iptables): with its
// flags, of all versions since 1.10, its variables and its defaults. It is also what the program does if it is called so.
const istioCommand = "istio-iptables"

// routesCommand is its second command.
const routesCommand = "configure-routes"

// istioFlags are flags of Istio's program that apply does not have, since it has others for the same.
var istioFlags = []ruleFlag{
	{"native-nftables", "", flag, "use nftables by netlink, and no iptables programs", choose(ruleset.BackendNftables)},
	{"force-iptables-binary", "", text, "the iptables programs to use: nft or legacy, or one's name, such as iptables-legacy", setBinary},
	{"force-legacy-iptables", "", flag, "use the legacy iptables programs", choose(ruleset.BackendIptablesLegacy)},
	{"cleanup-only", "", flag, "remove the rules, and apply none", into(parseBool, func(b *flagBuild) *bool { return &b.removeOnly })},
	ignored("cni-mode", "", flag, "the rules are made in the same way wherever this program runs"),
	ignored("force-apply", "", flag, "rules that differ from what is wanted are always replaced, and others need not be"),
	ignored("host-nsenter-exec", "", flag, "no program is run to enter a network namespace"),
	ignored("iptables-trace-logging", "", flag, "no rule logs; the command trace says what happens to a packet"),
	ignored("iptables-version", "", text, "it is found out; --force-iptables-binary chooses among several"),
	ignored("output-paths", "", text, "the rules are written to no file; --dry-run prints them"),
	ignored("reconcile", "", flag, "rules that differ from what is wanted are always replaced"),
	ignored("restore-format", "f", flag, "rules are printed as iptables-save does"),
}

// ignored is a flag that has no effect. A warning names it, unless it is boolean and off.
func ignored(name, short, kind, why string) ruleFlag {
	return ruleFlag{name, short, kind, noEffect + why, func(b *flagBuild, value string) error {
		if value != "" && value != "false" {
			b.warnings = append(b.warnings, "--"+name+" has "+noEffect+why)
		}
		return nil
	}}
}

const noEffect = "no effect: "

// choose sets the backend if the flag is on. The first flag counts.
func choose(name ruleset.Backend) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) error {
		on, err := parseBool(value)
		if on && b.backend == ruleset.BackendAuto {
			b.backend = name
		}
		return err
	}
}

// setBinary reads the names that Istio's program knows. Each stands for the programs of both families.
func setBinary(b *flagBuild, value string) error {
	variant := strings.TrimPrefix(strings.TrimPrefix(value, "ip6tables"), "iptables")
	name, ok := map[string]ruleset.Backend{
		"nft": ruleset.BackendIptablesNFT, "-nft": ruleset.BackendIptablesNFT, "legacy": ruleset.BackendIptablesLegacy, "-legacy": ruleset.BackendIptablesLegacy,
	}[variant]
	switch {
	case variant == "" && value != "":
		name = ruleset.BackendIptables
	case !ok && value != "":
		return errors.New("not nft, legacy, iptables, iptables-nft or iptables-legacy")
	}
	if name != "" && b.backend == ruleset.BackendAuto {
		b.backend = name
	}
	return nil
}

// asIstio declares the flags of Istio's program, and makes build read them as it does.
func (c *common) asIstio(fs *pflag.FlagSet) {
	c.istioFlags = istioFlags
	c.flags, c.backend = fs, ruleset.BackendAuto
	c.config = explain.NoConfiguration
	c.meshes = dialect.SetOf(istio.New()).WithOptions(dialect.Options{UncapturedFamily: redirect.UncapturedAllow})
	c.ruleFlags = addRuleFlags(fs)
	c.ruleFlags.AddFlagSet(addFlags(fs, "Others that Istio's program has", istioFlags, nil))
	fs.StringVar(&c.netns, "network-namespace", "", "path of the pod's network namespace; default, the one this program is in")
	cli.Group(fs, "What is said", c.log.declare)
}

// servesIstio reports whether Istio's sidecars are among the dialects: the program of another mesh has no command of Istio's.
func (p Program) servesIstio() bool {
	return slices.ContainsFunc(p.Dialects, func(d dialect.Dialect) bool { return d.Name == istio.New().Name })
}

// istioCommand makes the command and its second one.
func (p Program) istioCommand() *cobra.Command {
	cmd := p.istioVerb(istioCommand+" [flags]", "Do as Istio's init-container program of this name, with its flags and defaults", runApply)
	cmd.AddCommand(p.istioVerb(routesCommand+" [flags]", "Add the routes that the rules need, and no rules", runRoutes))
	return cmd
}

func (p Program) istioVerb(use, short string, run func(*common, *cobra.Command, *netnsexec.NetNS) error) *cobra.Command {
	c := &common{Program: p}
	cmd := &cobra.Command{Use: use, Short: short}
	c.asIstio(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.log.begin(c); err != nil {
			return err
		}
		if c.netns == "" {
			c.netns, _ = p.Env("NETWORK_NAMESPACE")
		}
		return c.inNetNS(func(ns *netnsexec.NetNS) error { return run(c, cmd, ns) })
	}
	return cmd
}

// runRoutes adds what the rules need besides themselves.
func runRoutes(c *common, cmd *cobra.Command, ns *netnsexec.NetNS) error {
	t, err := c.target(ns)
	if err != nil {
		return err
	}
	c.warn(t)
	var wanted []string
	for _, f := range ruleset.Families {
		if p := t.Plan.Ruleset.Family(f); p != nil {
			wanted = append(wanted, p.IPCommands()...)
		}
	}
	switch {
	case t.action.skipApply:
		visible.To(c.Stdout).Printf("nothing added: --skip-rule-apply\n")
	case len(wanted) == 0:
		visible.To(c.Stdout).Printf("nothing to add: the rules need no routes\n")
	case t.action.dryRun:
		visible.To(c.Stdout).Text(strings.Join(wanted, "\n") + "\n")
	default:
		left, err := apply.Route(cmd.Context(), ns, t.Plan.Ruleset)
		if err != nil {
			return err
		}
		visible.To(c.Stdout).Printf("in place: %s\n", strings.Join(wanted, "; "))
		for _, u := range left {
			visible.To(c.Stdout).Printf("%s\n", u)
		}
	}
	return nil
}

// called returns the arguments of a program that was started by that name, such as a link to it. By the name of Istio's program
// it is that program.
func called(name string, args []string) []string {
	if filepath.Base(name) != istioCommand || len(args) > 0 && args[0] == istioCommand {
		return args
	}
	return append([]string{istioCommand}, args...)
}

// withoutEmpty drops the empty elements of a list.
func withoutEmpty(value string) string {
	elements := strings.Split(value, ",")
	return strings.Join(slices.DeleteFunc(elements, func(s string) bool { return strings.TrimSpace(s) == "" }), ",")
}
