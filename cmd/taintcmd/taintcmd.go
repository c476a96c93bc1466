// Package taintcmd implements the command line of meshcni-taint, the controller of the taint that keeps pods off a node until the
// node's agent is ready. Package internal/readytaint decides; this one asks and tells the API server. It is a program of its own,
// not a command of the agent's, because client-go's leader election links the whole clientset: that would be in the memory of
// every node's agent, for two pods of the cluster.
package taintcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/apiserver"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/nodeevents"
	"github.com/meshcni/meshcni/internal/readytaint"
	"github.com/meshcni/meshcni/internal/serve"
	"github.com/meshcni/meshcni/internal/version"
	"github.com/meshcni/meshcni/internal/versionmetric"
	"github.com/meshcni/meshcni/internal/visible"
)

// Program is the controller. The zero value is meshcni-taint with no environment, whose output is discarded.
type Program struct {
	// Identity is the product's.
	Identity meshcni.Identity
	// Env looks up an environment variable, like os.LookupEnv. Nil: none is set.
	Env func(string) (string, bool)
	// Stdout receives help and version, Stderr the log. Nil discards.
	Stdout, Stderr io.Writer
	// SetLog is called with the log, for libraries with a global logger. Default: none.
	SetLog func(*slog.Logger)

	unheard time.Duration // for how long the API server may tell nothing; zero: [unheard.For]
}

// Exec runs the program with the arguments, environment and streams of this process, until SIGINT or SIGTERM, and then exits. It
// does not return.
func (p Program) Exec() {
	p.Env, p.Stdout, p.Stderr = os.LookupEnv, os.Stdout, os.Stderr
	cli.Exec(p.Main)
}

// Main runs the program with args, which do not include the program's name, until it is done or ctx ends. It returns the exit
// code: 0 for success, 1 for failure, 2 for wrong usage.
func (p Program) Main(ctx context.Context, args []string) int {
	p.Identity = p.Identity.WithDefaults()
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Env == nil {
		p.Env = func(string) (string, bool) { return "", false }
	}
	if cli.Invalid(p.Stderr, p.name(), p.Identity.Validate()) {
		return cli.ExitFailed
	}
	root := &cobra.Command{Short: "keep pods off nodes whose agent is not ready, by a taint"}
	for _, c := range []struct {
		name, short string
		declare     func(*settings, *pflag.FlagSet)
		do          func(context.Context, *settings, *slog.Logger) error
	}{
		{"run", "remove the taint from nodes whose agent is ready, and put it back when the agent is gone, until SIGTERM", (*settings).registerRun, p.run},
		{"check", "see that a controller works: one renews the Lease, and no node whose agent is ready has the taint", (*settings).registerCluster, p.check},
		{"remove", "remove the taint from every node, and exit; a controller that still runs may put it back", func(*settings, *pflag.FlagSet) {}, p.remove},
	} {
		root.AddCommand(p.command(&cobra.Command{Use: c.name, Short: c.short}, c.declare, c.do))
	}
	return cli.Program{Name: p.name(), Version: p.Identity.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: root}.Run(ctx, args)
}

func (p Program) name() string { return p.Identity.Program("taint") }

// settings are the flags.
type settings struct {
	product meshcni.Identity
	access  apiserver.Access

	key        string
	alsoRemove []string
	logLevel   string

	readytaint.Options
	namespace, daemonSet, selector, lease, identity string
	metricsAddress, healthAddress                   string

	unheard time.Duration // [Program]'s
}

// command completes one.
func (p Program) command(c *cobra.Command, declare func(*settings, *pflag.FlagSet), do func(context.Context, *settings, *slog.Logger) error) *cobra.Command {
	s, fs := &settings{product: p.Identity, unheard: p.unheard}, c.Flags()
	fs.SortFlags = false
	fs.StringVar(&s.key, "taint-key", p.Identity.Taint(), "the taint's key; its effect is NoSchedule")
	fs.Var(cli.List(&s.alsoRemove, "a,b"), "also-remove", "others' taints that are removed with it, and never put back, such as cni.istio.io/not-ready")
	s.access.Register(fs)
	fs.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := cli.Fill(fs, cli.Env(p.Env)); err != nil {
			return cli.Usage(err)
		}
		if err := s.validate(fs); err != nil {
			return cli.Usage(err)
		}
		var level slog.Level
		if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
			return cli.Usagef("--log-level: %w", err)
		}
		log := cli.Logger(p.Stderr, level)
		if p.SetLog != nil {
			p.SetLog(log)
		}
		return do(c.Context(), s, log)
	}
	declare(s, fs)
	also := maps.Clone(apiserver.Variables)
	also["pod-namespace"], also["identity"] = []string{"POD_NAMESPACE"}, []string{"POD_NAME"}
	cli.BindEnv(fs, p.Identity.EnvPrefix, also)
	return c
}

// registerRun declares the flags of run alone.
func (s *settings) registerRun(fs *pflag.FlagSet) {
	s.registerCluster(fs)
	fs.DurationVar(&s.Grace, "grace", readytaint.DefaultGrace, "how long a node's agent may be gone or not ready before the taint is put back")
	fs.Float64Var(&s.MaxShare, "max-share", readytaint.DefaultMaxShare, "share of the nodes, but one at least, that may have a taint that was put back")
	fs.StringVar(&s.identity, "identity", "", "this controller's name in the Lease (default: the host's)")
	fs.StringVar(&s.metricsAddress, "metrics-address", ":15014", "address to serve /metrics on; empty for none")
	fs.StringVar(&s.healthAddress, "health-address", ":8000", "address to serve /healthz and /readyz on; empty for none")
}

// registerCluster declares the flags that say where the agents and the Lease are.
func (s *settings) registerCluster(fs *pflag.FlagSet) {
	fs.StringVar(&s.namespace, "pod-namespace", "", "the agents' namespace, and that of the Lease")
	fs.StringVar(&s.daemonSet, "daemonset-name", s.product.Agent, "the agents' DaemonSet, which says on which nodes they belong; while there is none, nothing is changed")
	fs.StringVar(&s.selector, "agent-selector", s.product.AgentSelector, "labels of the agents' pods")
	fs.StringVar(&s.lease, "lease-name", s.product.Program("taint"), "the Lease by which one of several controllers is the one that works")
}

// validate returns everything that is wrong with the flags that a command has.
func (s *settings) validate(fs *pflag.FlagSet) error {
	errs := []error{s.access.Validate()}
	for _, key := range append([]string{s.key}, s.alsoRemove...) {
		for _, wrong := range validation.IsQualifiedName(key) {
			errs = append(errs, fmt.Errorf("taint key %q: %s", key, wrong))
		}
	}
	if fs.Lookup("pod-namespace") == nil {
		return errors.Join(errs...)
	}
	if fs.Lookup("grace") != nil {
		errs = append(errs, s.Options.Validate())
	}
	if selector, err := labels.Parse(s.selector); err != nil {
		errs = append(errs, fmt.Errorf("agent-selector: %w", err))
	} else if selector.Empty() {
		errs = append(errs, errors.New("agent-selector: any pod of the namespace would be an agent"))
	}
	for name, value := range map[string]string{"pod-namespace": s.namespace, "daemonset-name": s.daemonSet, "lease-name": s.lease} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is not set", name))
		}
	}
	if s.identity == "" {
		host, err := os.Hostname()
		if s.identity = host; err != nil {
			errs = append(errs, fmt.Errorf("identity: %w", err))
		}
	}
	return errors.Join(errs...)
}

// requests a second, and at once: a thousand new nodes have their taints removed within half a minute.
const requestsPerSecond, requestsAtOnce = 50, 100

func (s *settings) config(agent string) (*rest.Config, error) {
	config, err := s.access.Config()
	if err != nil {
		return nil, err
	}
	config.UserAgent, config.QPS, config.Burst, config.Timeout = agent, requestsPerSecond, requestsAtOnce, 0
	return config, nil
}

// run is the controller.
func (p Program) run(ctx context.Context, s *settings, log *slog.Logger) error {
	log.Info("starting", "program", p.name(), "version", cmp.Or(p.Identity.Version, version.Long()))
	config, err := s.config(version.Agent(p.name(), p.Identity.Version))
	if err != nil {
		return err
	}
	registry := versionmetric.Registry(p.Identity, p.name())
	events, stop := nodeevents.Source{
		Config: func() (*rest.Config, error) { return config, nil }, Component: p.name(), Log: log,
	}.Start()
	defer stop()
	c, err := newController(config, s, log, events.Recorder(p.name()))
	if err != nil {
		return err
	}
	registry.MustRegister(c.metrics, c.outdated().Metric(p.Identity))
	closeServers, err := serve.Start(serve.Options{
		HealthAddress: s.healthAddress, MetricsAddress: s.metricsAddress, Ready: c.ready, Warnings: c.outdated().Warnings, Metrics: registry, Log: log,
	})
	if err != nil {
		return err
	}
	defer closeServers()
	return c.elect(ctx)
}

// removeWithin bounds remove: a release's removal waits for it.
const removeWithin = time.Minute

// remove takes the taint from every node.
func (p Program) remove(ctx context.Context, s *settings, log *slog.Logger) error {
	ctx, stop := context.WithTimeout(ctx, removeWithin)
	defer stop()
	config, err := s.config(version.Agent(p.name(), p.Identity.Version))
	if err != nil {
		return err
	}
	a, err := newAPI(config, s)
	if err != nil {
		return err
	}
	n, err := a.removeAll(ctx, log)
	visible.To(p.Stdout).Printf("The taint %s is removed from %d nodes.\n", s.key, n)
	return err
}
