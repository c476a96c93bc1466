//go:build linux

// Package nodecmd implements the command line of meshcni-node, the node agent. It installs the plugin, keeps it
// installed, and repairs pods that started without redirection. A [Program] with other dialects and another name is the
// agent of your own mesh.
package nodecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/program/memory"
	"github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Program is the node agent. The zero value is meshcni-node with no environment, whose output is discarded.
type Program struct {
	// Identity is the product's.
	Identity meshcni.Identity
	// Dialects are the values of --dialect; the first is the default. Nil means those of this module. One whose proxy is on
	// the node needs --ambient.
	Dialects []dialect.Dialect
	// Facts describe your own meshes for people and commands, beside their dialects. This module's are known.
	Facts mesh.List
	// Config holds the defaults of the flags, and settings that have no flag. Zero means installer.Default of the identity, which takes the
	// place of Config's own. Plugin.Dialects, by name from Dialects, is the default of --dialect; if it is empty or what installer.Default
	// has, the first of Dialects is.
	Config installer.Config
	// NodeProxy takes the pods of meshes whose proxy is on the node, with --ambient. Nil: proxies that ask for them as Istio's
	// ztunnel does, at --zds-socket.
	NodeProxy nodeproxy.Proxy
	// Env looks up an environment variable, like os.LookupEnv. Nil: none is set.
	Env func(string) (string, bool)
	// Stdout receives the plugins' log records, Stderr the agent's log. Nil discards.
	Stdout, Stderr io.Writer

	named   bool // Config says which dialects are the default
	asked   bool // the dialects have been asked whether they can work; invalid is their answer
	invalid error
	last    *liveSettings // to take instead of what the files have; nil: none
}

// Exec runs the program with the arguments, environment and streams of this
// process, until SIGINT or SIGTERM, and then exits. It does not return. The process collects garbage earlier than Go's default,
// unless GOGC is set, and gives back memory that it does not use.
func (p Program) Exec() {
	p.Env, p.Stdout, p.Stderr = os.LookupEnv, os.Stdout, os.Stderr
	cli.Exec(func(ctx context.Context, args []string) int {
		memory.Keep(ctx, p.Env)
		return p.Main(ctx, args)
	})
}

// Main runs the program with args, which do not include the program's name, until it is done or ctx ends. It returns
// the exit code: 0 for success, 1 for failure, 2 for wrong usage.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	if cli.Invalid(p.Stderr, p.Identity.Agent, p.Identity.Validate(), cli.NoDialects(p.Dialects)) {
		return cli.ExitFailed
	}
	return cli.Program{Name: p.Identity.Agent, Version: p.Identity.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: p.command()}.Run(ctx, args)
}

func (p *Program) setDefaults() {
	p.Identity = p.Identity.WithDefaults()
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = builtin.All()
	}
	p.Facts = facts.Beside(p.Facts, p.Dialects)
	if !p.asked { // once, since the settings are read again every few seconds
		p.asked, p.invalid = true, dialect.Validate(p.Dialects)
	}
	if reflect.ValueOf(p.Config).IsZero() {
		p.Config = installer.Default(p.Identity)
	}
	p.Config.Identity = p.Identity
	if names := p.Config.Plugin.Dialects; len(names) > 0 && !slices.Equal(names, installer.Default(p.Identity).Plugin.Dialects) {
		p.named = true
	} else if !p.named && len(p.Dialects) > 0 {
		p.Config.Plugin.Dialects = netconf.Dialects{p.Dialects[0].Name}
	}
	if p.Env == nil {
		p.Env = func(string) (string, bool) { return "", false }
	}
}

// Parse returns the settings that the program would run with, so that a manifest can be checked. The first of args is
// the command, such as run. Parse reads the configuration file and the template that args or the
// environment name. Its errors are those of Main.
func (p Program) Parse(args []string) (nodeagent.Config, error) {
	p.setDefaults()
	var none nodeagent.Config
	if len(p.Dialects) == 0 {
		return none, dialect.Validate(nil)
	}
	root := p.command()
	c, _, err := root.Find(args)
	if err != nil {
		return none, err
	}
	c.Args = cobra.NoArgs
	_, rest, err := root.Find(cli.Joined(root, args))
	if err != nil {
		return none, err
	}
	if c.Flags().Lookup("run-dir") == nil {
		return none, fmt.Errorf("no command that has settings in %q", args)
	}
	if err := c.ParseFlags(rest); err != nil {
		return none, err
	}
	if c.Flags().NArg() > 0 {
		return none, fmt.Errorf("unexpected %q", c.Flags().Args())
	}
	s, err := p.resolve(c.Flags())
	return s.Config, err
}

func (p Program) command() *cobra.Command {
	root := &cobra.Command{Short: "put the " + p.Config.Plugin.Type + " plugin on this node, and keep it there", Args: cobra.ArbitraryArgs}
	var once bool
	var awaited time.Duration
	run := &cobra.Command{
		Use: "run", Short: "install, watch and repair until SIGTERM; the plugin then stays, unless --uninstall-on-exit",
		RunE: func(c *cobra.Command, _ []string) error { return p.run(c.Context(), c.Flags()) },
	}
	install := &cobra.Command{
		Use: "install", Short: "install and exit: with --once at once, else when there is a network to chain into",
		RunE: p.with(func(ctx context.Context, s settings, log *slog.Logger) error {
			if !once && !s.Alone { // else Install says that there is nothing to do
				return p.installWhenReady(ctx, s, log)
			}
			plan, err := installer.Install(ctx, s.Config.Config, log)
			if err == nil {
				log.Info("installed", "file", filepath.Join(s.CNIConfDir, plan.Target), "network", plan.Network)
			}
			return err
		}),
	}
	install.Flags().BoolVar(&once, "once", false, "never wait: fail when there is no valid network file, and say why")
	uninstall := &cobra.Command{
		Use: "uninstall", Short: "take everything back; the binary stays while attachments made with it need it",
		RunE: p.with(func(ctx context.Context, s settings, log *slog.Logger) error {
			if awaited > 0 {
				waiting, stop := context.WithTimeout(ctx, awaited)
				defer stop()
				if err := installer.AwaitAgent(waiting, s.Config.Config); err != nil {
					return err
				}
			}
			return p.options(s, log).Uninstall(ctx)
		}),
	}
	uninstall.Flags().DurationVar(&awaited, "await-agent", 0, "let the node's agent end first, for so long at most; 0: stop it from installing")
	for _, c := range []*cobra.Command{run, install, uninstall} {
		s := p.defaults() // parsing fills s, which only serves to find errors: resolve reads the flags
		s.register(c.Flags(), p.Dialects)
		root.AddCommand(c)
	}
	root.AddCommand(append(p.statusCommands(), p.releaseCommand(), p.bundleCommand(), p.awaitUninstall(), p.proveCommand(), p.lookCommand(), p.peerEntryCommand())...)
	root.AddCommand(p.probeCommands()...)
	return root
}

// with makes a command of a function that takes the settings.
func (p Program) with(do func(context.Context, settings, *slog.Logger) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		s, err := p.resolve(c.Flags())
		if err != nil {
			return cli.Usage(err)
		}
		return do(c.Context(), s, p.logger(s.Plugin.LogLevel))
	}
}

func (p Program) logger(l slog.Leveler) *slog.Logger {
	return cli.Logger(p.Stderr, l)
}

// installWhenReady runs the agent until the plugin is installed.
func (p Program) installWhenReady(ctx context.Context, s settings, log *slog.Logger) error {
	agent, err := installer.New(installer.Options{Config: s.Config.Config, Log: log, PluginLog: p.Stdout})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for agent.Ready() != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		cancel()
	}()
	if err := agent.Run(ctx); err != nil {
		return err
	}
	return agent.Ready()
}

// run runs the agent.
func (p Program) run(ctx context.Context, typed *pflag.FlagSet) error {
	s, refused, err := p.resolveOrLast(typed)
	if err != nil {
		return cli.Usage(errors.Join(err, p.invalid))
	}
	var lv slog.LevelVar
	lv.Set(s.Plugin.LogLevel.Level())
	log := p.logger(&lv)
	log.Info("starting", "program", p.Identity.Agent, "version", cmp.Or(p.Identity.Version, version.Long()))
	if refused != nil {
		log.Error("the settings are refused; those that were last good are in force until they are mended", "error", refused.Error())
	}
	o, good := p.options(s, log), &keeper{log: log}
	var loaded settings // only the agent's loop uses it
	o.Load = func() (nodeagent.Config, error) {
		var err error
		loaded, err = p.read(typed)
		return loaded.Config, err
	}
	o.Reloaded = func(nodeagent.Config) {
		lv.Set(loaded.Plugin.LogLevel.Level())
		good.keep(loaded)
	}
	for _, file := range []string{s.configFile, s.pluginConfigFile} {
		if file != "" {
			o.Watch = append(o.Watch, filepath.Dir(file), file)
		}
	}
	agent, err := nodeagent.New(o)
	if err != nil {
		return err
	}
	return agent.Run(ctx)
}

// options returns those of an agent with the settings.
func (p Program) options(s settings, log *slog.Logger) nodeagent.Options {
	return nodeagent.Options{Dialects: p.Dialects, Facts: p.Facts, Config: s.Config, Proxy: p.NodeProxy, Log: log, PluginLog: p.Stdout}
}

// Permissions returns what the agent and its plugin ask of the API server with settings of [Program.Parse], so that roles can be checked.
func (p Program) Permissions(c nodeagent.Config) ([]agentapi.Right, error) {
	p.setDefaults()
	return nodeagent.Options{Dialects: p.Dialects, Config: c}.Permissions()
}
