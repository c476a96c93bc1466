//go:build linux

// Package nodecmd implements the command line of meshcni-node, the node agent. It installs the plugin, keeps it
// installed, and repairs pods that started without redirection. A [Program] with other dialects and another name is the
// agent of your own mesh.
package nodecmd

import (
	"github.com/meshcni/meshcni/internal/versionmetric"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/footprint"
	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/serve"
	"github.com/meshcni/meshcni/internal/version"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/mesh/builtin"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Program is the node agent. The zero value is meshcni-node with no environment, whose output is discarded.
type Program struct {
	// Name appears in messages, logs and metrics. Default: meshcni-node.
	Name string
	// Version is printed by --version, after the name. Default: this module's.
	Version string
	// Dialects are the values of --dialect; the first is the default. Nil means those of this module. One whose proxy is on
	// the node needs Settings.Ambient.
	Dialects []dialect.Dialect
	// Facts are what is known of the meshes beside their dialects. Nil means those of this module.
	Facts mesh.List
	// Config holds the defaults of the flags, and settings that have no flag. Zero means installer.Default().
	// Plugin.Dialects, by name from Dialects, is the default of --dialect; if it is empty or what installer.Default() has, the
	// first of Dialects is.
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

	open func(repaircmd.Settings, repaircmd.Host) (controller, error)
}

// Exec runs the program with the arguments, environment and streams of this
// process, until SIGINT or SIGTERM, and then exits. It does not return. The process collects garbage earlier than Go's default,
// unless GOGC is set, and gives back memory that it does not use.
func (p Program) Exec() {
	p.Env, p.Stdout, p.Stderr = os.LookupEnv, os.Stdout, os.Stderr
	cli.Exec(func(ctx context.Context, args []string) int {
		footprint.Keep(ctx, p.Env)
		return p.Main(ctx, args)
	})
}

// Main runs the program with args, which do not include the program's name, until it is done or ctx ends. It returns
// the exit code: 0 for success, 1 for failure, 2 for wrong usage.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	if len(p.Dialects) == 0 {
		return cli.NoDialects(p.Stderr, p.Name)
	}
	return cli.Program{Name: p.Name, Version: p.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: p.command()}.Run(ctx, args)
}

func (p *Program) setDefaults() {
	cli.Default(&p.Name, "meshcni-node")
	cli.Default(&p.Version, version.Long())
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = dialects.All()
	}
	if p.Facts == nil {
		p.Facts = builtin.Facts()
	}
	if !p.asked { // once, since the settings are read again every few seconds
		p.asked, p.invalid = true, dialect.List(p.Dialects).Validate()
	}
	if reflect.ValueOf(p.Config).IsZero() {
		p.Config = installer.Default()
	}
	if names := p.Config.Plugin.Dialects; len(names) > 0 && !slices.Equal(names, installer.Default().Plugin.Dialects) {
		p.named = true
	} else if !p.named && len(p.Dialects) > 0 {
		p.Config.Plugin.Dialects = netconf.Dialects{p.Dialects[0].Name}
	}
	if p.open == nil {
		p.open = openRepair
	}
	if p.Env == nil {
		p.Env = func(string) (string, bool) { return "", false }
	}
}

// Parse returns the settings that the program would run with, so that a manifest can be checked. The first of args is
// the command, such as run. Parse reads the configuration file and the template that args or the
// environment name. Its errors are those of Main.
func (p Program) Parse(args []string) (Settings, error) {
	p.setDefaults()
	if len(p.Dialects) == 0 {
		return Settings{}, dialect.List{}.Validate()
	}
	c, rest, err := p.command().Find(args)
	if err != nil {
		return Settings{}, err
	}
	if c.Flags().Lookup("run-dir") == nil {
		return Settings{}, fmt.Errorf("no command that has settings in %q", args)
	}
	if err := c.ParseFlags(rest); err != nil {
		return Settings{}, err
	}
	if c.Flags().NArg() > 0 {
		return Settings{}, fmt.Errorf("unexpected %q", c.Flags().Args())
	}
	return p.resolve(c.Flags())
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
		RunE: p.with(func(ctx context.Context, s Settings, log *slog.Logger) error {
			if !once {
				return p.installWhenReady(ctx, s, log)
			}
			plan, err := installer.Install(ctx, s.Config, log)
			if err == nil {
				log.Info("installed", "file", filepath.Join(s.CNIConfDir, plan.Target), "network", plan.Network)
			}
			return err
		}),
	}
	install.Flags().BoolVar(&once, "once", false, "never wait: fail when there is no valid network file, and say why")
	uninstall := &cobra.Command{
		Use: "uninstall", Short: "take everything back; the binary stays while attachments made with it need it",
		RunE: p.with(func(ctx context.Context, s Settings, log *slog.Logger) error {
			if awaited > 0 {
				waiting, stop := context.WithTimeout(ctx, awaited)
				defer stop()
				if err := installer.AwaitAgent(waiting, s.Config); err != nil {
					return err
				}
			}
			released := p.releaseBefore(ctx, s, log)
			_, err := installer.Uninstall(ctx, s.Config, log)
			return errors.Join(released, err, removeDeadSocket(filepath.Join(s.RunDir, agentsock.Name)))
		}),
	}
	uninstall.Flags().DurationVar(&awaited, "await-agent", 0, "let the node's agent end first, for so long at most; 0: stop it from installing")
	for _, c := range []*cobra.Command{run, install, uninstall} {
		s := p.defaults() // parsing fills s, which only serves to find errors: resolve reads the flags
		s.register(c.Flags(), p.Dialects)
		root.AddCommand(c)
	}
	root.AddCommand(append(p.statusCommands(), p.releaseCommand(), p.bundleCommand(), p.awaitUninstall(), p.standInCommand(), p.startedCommand(), p.lookCommand(), p.peerEntryCommand())...)
	return root
}

// with makes a command of a function that takes the settings.
func (p Program) with(do func(context.Context, Settings, *slog.Logger) error) func(*cobra.Command, []string) error {
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
func (p Program) installWhenReady(ctx context.Context, s Settings, log *slog.Logger) error {
	agent, err := installer.New(installer.Options{Config: s.Config, Log: log, PluginLog: p.Stdout})
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

// run is the agent.
func (p Program) run(ctx context.Context, typed *pflag.FlagSet) error {
	s, refused, err := p.resolveOrLast(typed)
	if err != nil {
		return cli.Usage(errors.Join(err, p.invalid))
	}
	var lv slog.LevelVar
	lv.Set(s.Plugin.LogLevel.Level())
	log := p.logger(&lv)
	log.Info("starting", "program", p.Name, "version", p.Version)
	if refused != nil {
		log.Error("the settings are refused; those that were last good are in force until they are mended", "error", refused.Error())
	}
	if p.invalid != nil {
		return p.runInvalid(ctx, s, p.invalid, log)
	}
	reg := versionmetric.Registry(p.Name)
	repairs := &repairer{program: p, log: log, settings: s, confined: p.confinementOf(s, log)}
	var held *proxied // nil without --ambient
	turn := newTurn()
	good := &keeper{log: log}
	reg.MustRegister(repairs)
	opts := installer.Options{
		Config: s.Config, Log: log, PluginLog: p.Stdout, Registry: reg, UninstallOnExit: s.UninstallOnExit != OnExitKeep,
		Token: p.pluginToken(s), OnDecision: repairs.decided, OnTurn: turn.set,
		Reload: func() (installer.Config, error) {
			next, err := p.resolve(typed)
			if err == nil {
				err = s.keeps(next)
			}
			if err == nil && s.Ambient.Enabled && !slices.ContainsFunc(next.Plugin.Dialects, p.onNode) {
				// Of an upgrade that switches ambient mode off, the agent sees this before its own end.
				err = fmt.Errorf("dialect %v: no mesh has its proxy on the node, and the pods of one are held: that needs a restart of the agent", next.Plugin.Dialects)
			}
			if err == nil {
				lv.Set(next.Plugin.LogLevel.Level())
				repairs.change(next)
				held.change(next)
				good.keep(next)
			}
			return next.Config, err
		},
	}
	for _, file := range []string{s.configFile, s.pluginConfigFile} {
		if file != "" {
			opts.ReloadDirs = append(opts.ReloadDirs, filepath.Dir(file), file)
		}
	}
	if s.UninstallOnExit == OnExitAuto {
		leaving, stop := watchDaemonSet(ctx, s, log)
		defer stop()
		opts.Leaving = leaving
	}
	left := p.newLeftover(s, log) // nil: no pods are left of an agent with --ambient
	opts.TakeOver = left.ready
	var sock *socket
	var agent *installer.Agent
	full := newTables(s, func() []agentsock.PodState { return merge(repairs.pods(), held.pods()) }, log)
	reg.MustRegister(full)
	states := func(held *proxied) []agentsock.PodState {
		all := full.mark(merge(repairs.pods(), slices.Concat(held.pods(), left.states())))
		if agent == nil {
			return all
		}
		return withFailing(all, agent.Failing(), sock.podsOf)
	}
	sock, held, err = p.serve(s, states, log)
	if err != nil {
		return err
	}
	if sock != nil && left != nil {
		sock.left = left
	}
	if sock != nil && sock.pods != nil {
		repairs.watch = sock.pods
	}
	reg.MustRegister(sock)
	if held != nil {
		reg.MustRegister(held)
		opts.Leaving = held.leaving(opts.Leaving)
	}
	notify, quiet := tell(s, p.Name, log)
	defer quiet()
	opts.Notify = notify
	if left != nil {
		left.notify = notify
	}
	if agent, err = installer.New(opts); err != nil {
		return err
	}
	repairs.installed, repairs.putBack, repairs.since = agent.Ready, agent.PutBack, agent.FirstInstalled
	repairs.suspects = func() (texts []string) {
		for _, n := range agent.Neighbours() {
			texts = append(texts, n.String())
		}
		return texts
	}
	repairs.elsewhere = func(dialect string) bool { return servedBy(agent.Neighbours(), p.Facts, dialect) }
	warnings := func() []string {
		texts := slices.Concat(repairs.warnings(), held.warnings(), full.warnings(), left.warnings())
		if why := agent.Refused(); why != "" {
			texts = append(texts, string(installer.NoticeConfigRefused)+": the changed configuration is refused, and the one before it is in force: "+strings.ReplaceAll(why, "\n", "; "))
		}
		return texts
	}
	wrong := func() error {
		return errors.Join(agent.Ready(), repairs.ready(), sock.ready(), held.ready(), left.ready())
	}
	ready := func() error {
		if turn.ended() { // it is about to be stopped; that another agent has the node is no trouble
			return nil
		}
		return wrong()
	}
	now := func() Status {
		now := Status{Time: time.Now(), Node: s.Repair.Node, Warnings: warnings(), Pods: states(held)}
		if err := wrong(); err != nil {
			now.NotReady = strings.Split(err.Error(), "\n")
		}
		now.Ready = len(now.NotReady) == 0
		return now
	}
	told := nodeAPI{program: p, settings: repairs.acting, auto: s.AutoEvict, status: now, neighbours: agent.Neighbours, pods: sock.podsOf, podByUID: sock.podByUID, binDirs: agent.BinDirs, ownToken: agent.GivesOwnToken, kernel: &features{}}
	stop, err := startAnswering(turn, s.StartSocket, agent.Ready, serve.Options{
		Local: told.handler(), HealthAddress: s.HealthAddress, MetricsAddress: s.MetricsAddress, Log: log, Metrics: reg,
		Healthy: agent.Healthy, Ready: ready,
		Warnings: func() []string {
			texts := warnings()
			for _, n := range agent.Neighbours() {
				texts = append(texts, string(installer.NoticeOtherMesh)+": "+n.Text())
			}
			return texts
		},
	})
	if err != nil {
		return err
	}
	defer stop()
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return turn.first(ctx, repairs.run) })
	// What the agent needs to release its pods, when it leaves for good or the next one has none, goes on until it has ended.
	staying, leave := context.WithCancel(context.WithoutCancel(ctx))
	both.Go(func() error {
		defer leave()
		defer held.awaitReleases(staying)
		return agent.Run(ctx)
	})
	if notify != nil {
		both.Go(func() error { return repairs.tellOtherDialects(ctx, notify) })
	}
	both.Go(func() error { return turn.first(staying, sock.run) })
	both.Go(func() error { return turn.first(staying, held.run) })
	both.Go(func() error { return left.run(ctx) })
	both.Go(func() error {
		return turn.first(ctx, reporter{path: filepath.Join(s.RunDir, statusFile), log: log, now: now}.run)
	})
	err = both.Wait()
	if acts, _, _ := turn.now(); !acts && !turn.ended() {
		left.undo()
	}
	return err
}

// keeps refuses changes of settings that are only read at the start.
func (s Settings) keeps(next Settings) error {
	fixed := func(s Settings) [18]string {
		return [...]string{
			string(s.Repair.Action), strconv.FormatBool(s.AutoEvict), strconv.FormatBool(s.Repair.Detect), s.Repair.Node, s.MetricsAddress, s.HealthAddress,
			string(s.UninstallOnExit), s.DaemonSetName, s.PluginServiceAccount, s.TokenLifetime.String(), string(s.Plugin.Agent),
			strconv.FormatBool(s.Ambient.Enabled), s.Ambient.ZDSSocket, s.Ambient.VerifyInterval.String(), strconv.FormatBool(s.Ambient.ReadyNeedsProxy),
			s.Ambient.DrainTimeout.String(), s.StartSocket, s.CNICacheDir,
		}
	}
	if fixed(next) != fixed(s) {
		return errors.New("repair, detect, node-name, metrics-address, health-address, uninstall-on-exit, daemonset-name, " +
			"plugin-service-account, token-lifetime, agent, ambient, zds-socket, ambient-verify-interval, ambient-drain-timeout, ready-needs-proxy, " +
			"start-socket and cni-cache-dir need a restart of the agent")
	}
	return nil
}
