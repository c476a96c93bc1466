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
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/apiserver"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	nodeapi "github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/news/reporter"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/internal/program/versionmetric"
	"github.com/meshcni/meshcni/internal/readytaint"
	"github.com/meshcni/meshcni/internal/readytaint/taintmetrics"
	"github.com/meshcni/meshcni/internal/text/visible"
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
	name := p.Identity.Program("taint")
	if cli.Invalid(p.Stderr, name, p.Identity.Validate()) {
		return cli.ExitFailed
	}
	root := &cobra.Command{Short: "keep pods off nodes whose agent is not ready, by a taint"}
	root.AddCommand(
		p.command("run", "remove the taint from nodes whose agent is ready, and put it back when the agent is gone, until SIGTERM", (*settings).register, (*controller).run),
		p.command("remove", "remove the taint from every node, and exit; a controller that still runs may put it back", nil, (*controller).remove),
	)
	return cli.Program{Name: name, Version: p.Identity.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: root}.Run(ctx, args)
}

// settings are the flags.
type settings struct {
	readytaint.Options
	access                                          apiserver.Access
	key, logLevel                                   string
	alsoRemove                                      []string
	namespace, daemonSet, selector, lease, identity string
	metricsAddress, healthAddress                   string
}

// command makes one; declare: its own flags, none if nil.
func (p Program) command(use, short string, declare func(*settings, *pflag.FlagSet, meshcni.Identity), do func(*controller, context.Context) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short}
	s, fs := &settings{}, c.Flags()
	fs.SortFlags = false
	fs.StringVar(&s.key, "taint-key", p.Identity.Taint(), "the taint's key; its effect is NoSchedule")
	fs.Var(cli.List(&s.alsoRemove, "a,b"), "also-remove", "others' taints that are removed with it, and never put back, such as cni.istio.io/not-ready")
	s.access.Register(fs)
	fs.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	if declare != nil {
		declare(s, fs, p.Identity)
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		var level slog.Level
		if err := cmp.Or(cli.Fill(fs, cli.Env(p.Env)), s.validate(declare != nil)); err != nil {
			return cli.Usage(err)
		} else if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
			return cli.Usagef("--log-level: %w", err)
		}
		log := cli.Logger(p.Stderr, level)
		if p.SetLog != nil {
			p.SetLog(log)
		}
		config, err := s.access.Config()
		if err != nil {
			return err
		}
		// A thousand new nodes have their taints removed within half a minute.
		config.UserAgent, config.QPS, config.Burst, config.Timeout = version.Agent(p.Identity.Program("taint"), p.Identity.Version), 50, 100, 0
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("prepare to ask the API server: %w", err)
		}
		return do(&controller{Program: p, settings: s, config: config, client: client, log: log}, c.Context())
	}
	also := maps.Clone(apiserver.Variables)
	also["pod-namespace"], also["identity"] = []string{"POD_NAMESPACE"}, []string{"POD_NAME"}
	cli.BindEnv(fs, p.Identity.EnvPrefix, also)
	return c
}

// register declares the flags of run alone.
func (s *settings) register(fs *pflag.FlagSet, product meshcni.Identity) {
	fs.StringVar(&s.namespace, "pod-namespace", "", "the agents' namespace, and that of the Lease")
	fs.StringVar(&s.daemonSet, "daemonset-name", product.Agent, "the agents' DaemonSet, which says on which nodes they belong; while there is none, nothing is changed")
	fs.StringVar(&s.selector, "agent-selector", product.AgentSelector, "labels of the agents' pods")
	fs.StringVar(&s.lease, "lease-name", product.Program("taint"), "the Lease by which one of several controllers is the one that works")
	fs.DurationVar(&s.Grace, "grace", readytaint.DefaultGrace, "how long a node's agent may be gone or not ready before the taint is put back")
	fs.Float64Var(&s.MaxShare, "max-share", readytaint.DefaultMaxShare, "share of the nodes, but one at least, that may have a taint that was put back")
	fs.StringVar(&s.identity, "identity", "", "this controller's name in the Lease (default: the host's)")
	fs.StringVar(&s.metricsAddress, "metrics-address", ":15014", "address to serve /metrics on; empty for none")
	fs.StringVar(&s.healthAddress, "health-address", ":8000", "address to serve /healthz and /readyz on; empty for none")
}

// validate returns everything that is wrong with the flags; run: those of run, too.
func (s *settings) validate(run bool) error {
	errs := []error{s.access.Validate()}
	for _, key := range append([]string{s.key}, s.alsoRemove...) {
		for _, wrong := range validation.IsQualifiedName(key) {
			errs = append(errs, fmt.Errorf("taint key %q: %s", key, wrong))
		}
	}
	if !run {
		return errors.Join(errs...)
	}
	errs = append(errs, s.Options.Validate())
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
	host, err := os.Hostname()
	if s.identity = cmp.Or(s.identity, host); s.identity == "" {
		errs = append(errs, fmt.Errorf("identity: %w", err))
	}
	return errors.Join(errs...)
}

// run is the command run.
func (c *controller) run(ctx context.Context) error {
	name := c.Identity.Program("taint")
	c.log.Info("starting", "program", name, "version", cmp.Or(c.Identity.Version, version.Long()))
	events, stop := nodeevents.Source{API: sync.OnceValues(func() (*nodeapi.Client, error) { return nodeapi.New(c.Identity, c.config, "") }), Component: name, Log: c.log}.Start()
	defer stop()
	c.events = events.Recorder(name)
	registry := versionmetric.Registry(c.Identity, name)
	c.metrics = taintmetrics.New(c.Identity, registry)
	c.report = reporter.New(c.Identity, c.news, c.tell, reporter.Outdated(codeOutdated))
	registry.MustRegister(c.report)
	closeServers, err := serve.Start(serve.Options{
		HealthAddress: c.healthAddress, MetricsAddress: c.metricsAddress, Ready: c.ready, News: c.news, Metrics: registry, Log: c.log,
	})
	if err != nil {
		return err
	}
	defer closeServers()
	return c.elect(ctx)
}

// remove is the command remove. A release's removal waits for it, so it takes a minute at most.
func (c *controller) remove(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	n, err := c.removeAll(ctx)
	visible.To(c.Stdout).Printf("The taint %s is removed from %d nodes.\n", c.key, n)
	return err
}
