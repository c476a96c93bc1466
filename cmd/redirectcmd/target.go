package redirectcmd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// common holds the flags that most commands share.
type common struct {
	Program
	plugin                     netconf.Config // what flags and the installed configuration say of the plugin's
	backendName                string
	ips                        []string
	file, namespaceFile, netns string
	configFile, hostRoot       string

	flags     *pflag.FlagSet // of the command
	ruleFlags *pflag.FlagSet // nil when the command takes none
	optional  bool           // -f may be left out, although there are no rule flags
	templates bool           // -f may be a workload, since nothing is done to a pod
	many      bool           // it is about many pods, so there is no -f of one

	istioFlags []ruleFlag // beside the rule flags; nil unless the command is Istio's
	log        istioLog   // of Istio's command
	quiet      bool       // warnings are not said

	// Set by configure and check.
	config  explain.Configuration
	meshes  dialect.Set
	backend ruleset.Backend
	addrs   []netip.Addr
}

// newCommand makes a command about one pod with the common flags, which are valid when it calls run.
func (p Program) newCommand(use, short string, run func(c *common, cmd *cobra.Command) error) (*cobra.Command, *common) {
	cmd, c := p.settingsCommand(use, short, func(c *common, cmd *cobra.Command) error {
		err := run(c, cmd)
		if errors.Is(err, redirect.ErrNamespaceUnknown) && c.namespaceFile == "" {
			return fmt.Errorf("%w: give it with --namespace-file", err)
		}
		return err
	})
	fs := cmd.Flags()
	fs.StringVar(&c.configFile, "config", "", "the network configuration with the plugin's entry: a file, a directory, - for standard input, or none (default: with -f, the one installed on this node)")
	fs.StringVarP(&c.file, "file", "f", "", "the pod, in YAML or JSON; explain, rules and trace also take a workload, such as a Deployment; - is standard input")
	fs.StringVar(&c.namespaceFile, "namespace-file", "", "the pod's Namespace, for dialects that look at it")
	fs.StringArrayVar(&c.ips, "ip", nil, "address of the pod, primary first (repeatable); default, from its status or interfaces")
	return cmd, c
}

// settingsCommand makes a command with the flags that stand for the plugin's settings, which are valid when it calls run.
func (p Program) settingsCommand(use, short string, run func(c *common, cmd *cobra.Command) error) (*cobra.Command, *common) {
	c := &common{Program: p}
	cmd := &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error {
		if err := c.configure(); err != nil {
			return err
		}
		if err := c.check(); err != nil {
			return err
		}
		return run(c, cmd)
	}}
	fs := cmd.Flags()
	c.flags = fs
	c.plugin.Dialects = netconf.Dialects{p.Dialects[0].Name}
	fs.Var(cli.Text(&c.plugin.Dialects, "a,b"), "dialect", cli.DialectUsage(p.Dialects))
	fs.StringVar(&c.backendName, "backend", string(ruleset.BackendAuto), "auto, iptables, iptables-nft, iptables-legacy or nftables")
	fs.Var(cli.List(&c.plugin.Kubernetes.ExcludeNamespaces, "strings"), "exclude-namespaces", "namespaces whose pods are left alone")
	fs.StringVar(&c.plugin.Kubernetes.ExcludeNamespaceSelector, "exclude-namespace-selector", "", "labels of namespaces whose pods are left alone, such as mesh=off; needs --namespace-file")
	cli.Ambient(fs, &c.plugin)
	c.plugin.UncapturedFamily = redirect.UncapturedAllow
	fs.Var(cli.Required((*string)(&c.plugin.UncapturedFamily), "string"), "uncaptured-family", "what to do with a family of the pod that is not captured: allow or drop")
	fs.BoolVar(&c.plugin.RefuseProxyUID, "refuse-proxy-uid", false, "refuse a pod with a container that the rules may take for the proxy, as the plugin's refuse_proxy_uid does")
	fs.BoolVar(&c.plugin.RefuseNetRaw, "refuse-net-raw", false, "refuse a pod with a container that may set the proxy's mark, as the plugin's refuse_net_raw does")
	cli.Sandboxed(fs, &c.plugin)
	return cmd, c
}

// withNetNS adds --netns.
func (c *common) withNetNS(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.netns, "netns", "", "path of the pod's network namespace; default, the one this program is in")
	cmd.Flags().StringVar(&c.netns, "network-namespace", "", "the same")
	_ = cmd.Flags().MarkHidden("network-namespace")
	cmd.Flags().StringVar(&c.hostRoot, "host-root", "", "root directory whose iptables is run: /host in a pod of kubectl debug (default: our own)")
}

// check parses the common flags. The error lists every bad one.
func (c *common) check() error {
	var errs []error
	var err error
	if c.plugin.UncapturedFamily, err = redirect.ParseUncapturedFamily(string(c.plugin.UncapturedFamily)); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", c.origin("uncaptured-family", "uncaptured_family"), err))
	}
	if err := dialect.Validate(c.Dialects); err != nil {
		errs = append(errs, err)
	} else {
		c.meshes, err = dialect.Configure(c.Dialects, c.plugin)
		errs = append(errs, dialect.ByFlag(err, func(e *dialect.KeyError) error { return fmt.Errorf("%s: %w", c.origin(e.Flag(), e.Key), e.Err) }))
	}
	if c.backend, err = ruleset.ParseBackend(c.backendName); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", c.origin("backend", "backend"), err))
	}
	for _, ip := range c.ips {
		a, err := netip.ParseAddr(ip)
		if err == nil && (a.Zone() != "" || a.IsUnspecified()) {
			err = errors.New("not the address of a pod")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--ip %q: %w", ip, err))
			continue
		}
		c.addrs = append(c.addrs, a.Unmap())
	}
	switch {
	case c.many:
	case c.file == "" && c.ruleFlags == nil && !c.optional:
		errs = append(errs, errors.New("-f is required"))
	case c.file == "" && c.namespaceFile != "":
		errs = append(errs, errors.New("--namespace-file: needs -f"))
	case c.inputs() > 1:
		errs = append(errs, errors.New("-f, --namespace-file and --config: only one of them can be standard input"))
	case c.file != "" && c.ruleFlags != nil:
		if given := c.givenRules(); len(given) > 0 {
			errs = append(errs, fmt.Errorf("%s: with -f the pod says what the rules are", strings.Join(given, ", ")))
		}
	}
	return cli.Usage(errors.Join(errs...))
}

// inputs counts the files that are standard input.
func (c *common) inputs() (n int) {
	for _, name := range []string{c.file, c.namespaceFile, c.configFile} {
		if name == "-" {
			n++
		}
	}
	return n
}

// target is one pod and what becomes of it.
type target struct {
	explain.Explanation
	// mesh has the pod; it is the first that was asked if none has.
	mesh *dialect.Dialect
	// action holds the action flags.
	action flagBuild
}

// target explains the pod that the flags name. It reads the pod's addresses, if they are unknown, and its kernel's families from ns, which
// may be nil. A refused pod is an error.
func (c *common) target(ns *netnsexec.NetNS) (*target, error) {
	t, err := c.explained(ns)
	if err != nil {
		return nil, err
	}
	return t, t.Err()
}

// explained is [common.target], which has refused pods too.
func (c *common) explained(ns *netnsexec.NetNS) (*target, error) {
	t := &target{mesh: c.meshes.Lookup(c.meshes.Names()[0])}
	in := explain.Input{Subject: dialect.Subject{Pod: &corev1.Pod{}, Addrs: c.addrs}, Facts: c.Facts, Configuration: c.config, Identity: c.Identity}
	meshes, err := c.meshes, error(nil)
	if c.file == "" {
		meshes, err = c.byFlags(t, &in, ns)
	} else {
		err = c.byFile(t, &in, ns)
	}
	if err != nil {
		return nil, err
	}
	if t.Explanation, err = explain.Pod(meshes, in); err != nil {
		return nil, err
	}
	if d := c.meshes.Lookup(t.Plan.Dialect); d != nil {
		t.mesh = d
	}
	return t, nil
}

// byFile reads the pod and its namespace.
func (c *common) byFile(t *target, in *explain.Input, ns *netnsexec.NetNS) error {
	m, err := object(c.Program, c.file, "Pod", explain.ParseManifest)
	if err != nil {
		return err
	}
	if m.Template && !c.templates {
		return fmt.Errorf("-f %s: it is the %s %s: only explain, rules and trace take its template; give one of its pods", c.file, m.Pod.OwnerReferences[0].Kind, m.Pod.Name)
	}
	in.Subject.Pod, in.Template = m.Pod, m.Template
	if c.namespaceFile != "" {
		if in.Subject.Namespace, err = object(c.Program, c.namespaceFile, "Namespace", explain.ParseNamespace); err != nil {
			return err
		}
	}
	if c.ruleFlags != nil {
		if t.action, _, err = c.build(redirect.Redirect{}, actionFlags); err != nil {
			return err
		}
	}
	if len(in.Subject.Addrs) == 0 {
		in.Subject.Addrs = explain.Addrs(m.Pod)
	}
	return look(&in.Subject, ns)
}

// byFlags applies the rule flags to what the dialect makes of a pod without settings, and returns a mesh that makes nothing else.
func (c *common) byFlags(t *target, in *explain.Input, ns *netnsexec.NetNS) (set dialect.Set, err error) {
	if c.meshes.Len() > 1 {
		return set, cli.Usagef("--dialect %s: without -f nothing says which of them the rules are for", c.meshes)
	}
	if err := look(&in.Subject, ns); err != nil {
		return set, err
	}
	built, err := t.mesh.Redirect(in.Subject.Pod, &corev1.Namespace{}, in.Subject.Addrs)
	if err != nil {
		return set, err
	}
	base := built.Redirect
	if c.istioFlags != nil {
		base = istiofacts.Nothing(base)
	}
	if t.action, built.Origins, err = c.build(base, nil); err != nil {
		return set, err
	}
	c.backend, built.Redirect, in.Warnings = t.action.backend, t.action.Redirect, t.action.warnings
	if err := built.Redirect.Validate(); err != nil {
		return set, cli.Usage(err)
	}
	flags := dialect.Dialect{Name: t.mesh.Name, Build: func(dialect.Input) (dialect.Reading, error) { return built, nil }}
	return dialect.SetOf(flags).WithOptions(c.meshes.Options()), nil
}

// look reads the kernel's families, and the addresses if they are unknown, from ns.
func look(s *dialect.Subject, ns *netnsexec.NetNS) (err error) {
	if ns == nil {
		return nil
	}
	if s.Kernel, err = apply.Kernel(ns); err != nil || len(s.Addrs) > 0 {
		return err
	}
	return ns.Do(func() error {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return fmt.Errorf("list the pod's addresses: %w", err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
				s.Addrs = append(s.Addrs, p.Addr().Unmap())
			}
		}
		return nil
	})
}

// bypasses prints the ways past all rules that the packets of a running pod have, and returns whether there are any, and what cannot be told.
func (c *common) bypasses(ns *netnsexec.NetNS, t *target) (past bool, unknown []ruleset.Difference) {
	addrs := c.addrs
	if len(addrs) == 0 {
		addrs = explain.Addrs(t.Subject.Pod)
	}
	open, unknown := bypass.Told(bypass.Live(ns, addrs))
	for _, b := range open {
		visible.To(c.Stderr).Printf("%s: %s\n", c.name(), b)
	}
	return len(open) > 0, unknown
}

// inNetNS calls f with the namespace to work on.
func (c *common) inNetNS(f func(*netnsexec.NetNS) error) (err error) {
	open := netnsexec.Current
	if c.netns != "" {
		open = func() (*netnsexec.NetNS, error) { return netnsexec.Open(c.netns) }
	}
	ns, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return f(ns)
}

// warn prints bypasses and warnings.
func (c *common) warn(t *target) {
	if !c.quiet {
		printers.Warn(c.Stderr, t.Explanation)
	}
}

// say prints a warning.
func (c *common) say(warning string) {
	if !c.quiet {
		visible.To(c.Stderr).Printf("warning: %s\n", warning)
	}
}
