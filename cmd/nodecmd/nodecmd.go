//go:build linux

// Package nodecmd is the node agent's command line as a function: arguments, environment and streams in, exit code out.
// The program meshcni-node only chooses the operating system's.
package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshcni/meshcni/cmd/versionmetric"
	"github.com/meshcni/meshcni/installer"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
)

// App is the program.
type App struct {
	// Env looks up an environment variable, as os.LookupEnv does. Nil: there are none.
	Env func(string) (string, bool)
	// Stdout gets the plugins' records, Stderr the agent's log. Nil discards.
	Stdout, Stderr io.Writer
	// Repair runs the repair of pods beside the agent until the context ends. A change of what it is given ends it and starts
	// it anew. Nil: --repair is refused.
	Repair func(context.Context, RepairOptions) error
	// Version is what --version prints after the program's name.
	Version string
}

// RepairOptions are what the repair controller is given.
type RepairOptions struct {
	Settings Settings
	Log      *slog.Logger
	// Registry gets the controller's metrics. What is registered there is taken out when Repair returns.
	Registry prometheus.Registerer
	// InstallerReady says why new pods on this node would not be captured, if so: deleting pods would then only make more
	// of the same.
	InstallerReady func() error
	// AddReadiness makes the agent's /readyz say why repair does not work, if so, in place of what was said before.
	AddReadiness func(ready func() error)
}

// verifyVariable asks for the rules of running pods to be compared, which goes with any --repair, none included.
const verifyVariable = "MESHCNI_REPAIR_VERIFY_INTERVAL"

// repairs reports whether there is anything for the repair controller to do.
func (a App) repairs(s Settings) bool {
	verify, _ := a.Env(verifyVariable)
	return a.Repair != nil && (s.Repair != "none" || verify != "")
}

// errUsage marks what the user has typed wrong: exit code 2.
var errUsage = errors.New("usage")

// Main runs the program: 0 done, 1 failed or refused, 2 wrong usage. It returns when ctx ends.
func (a App) Main(ctx context.Context, args []string) int {
	if a.Env == nil {
		a.Env = func(string) (string, bool) { return "", false }
	}
	if a.Stdout == nil {
		a.Stdout = io.Discard
	}
	if a.Stderr == nil {
		a.Stderr = io.Discard
	}
	root := a.command()
	root.SetArgs(args)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	for line := range strings.Lines(err.Error() + "\n") {
		if line = strings.TrimSpace(strings.TrimPrefix(line, errUsage.Error()+": ")); line != "" {
			fmt.Fprintln(a.Stderr, "meshcni-node: "+line)
		}
	}
	if errors.Is(err, errUsage) {
		fmt.Fprintln(a.Stderr, "meshcni-node: see --help")
		return 2
	}
	return 1
}

func (a App) command() *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use: "meshcni-node", Short: "put the meshcni plugin on this node, and keep it there",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: no command %q: run, install or uninstall", errUsage, args[0])
			}
			if showVersion {
				a.printVersion(c)
				return nil
			}
			return fmt.Errorf("%w: name a command: run, install or uninstall", errUsage)
		},
	}
	// Not cobra's own version flag with a template: that links text/template, with which the linker keeps every exported
	// method of the program, 6 MB of them.
	root.Flags().BoolVarP(&showVersion, "version", "v", false, "say which build this is")
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "say which build this is", Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { a.printVersion(c) },
	})
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	for _, c := range []*cobra.Command{
		{
			Use: "run", Short: "install, watch and repair until SIGTERM; the plugin then stays, unless --uninstall-on-exit",
			RunE: func(c *cobra.Command, _ []string) error { return a.run(c, false) },
		},
		{
			Use: "install", Short: "install and exit: with --once at once, else when there is a network to chain into",
			RunE: func(c *cobra.Command, _ []string) error {
				if once, _ := c.Flags().GetBool("once"); !once {
					return a.run(c, true)
				}
				s, log, err := a.settings(c)
				if err != nil {
					return err
				}
				steps, err := installer.Install(c.Context(), s.Config, log)
				if err == nil {
					log.Info("installed", "file", filepath.Join(s.CNIConfDir, steps.Target), "network", steps.Network)
				}
				return err
			},
		},
		{
			Use: "uninstall", Short: "take everything back; the binary stays while attachments made with it need it",
			RunE: func(c *cobra.Command, _ []string) error {
				s, log, err := a.settings(c)
				if err != nil {
					return err
				}
				_, err = installer.Uninstall(c.Context(), s.Config, log)
				return err
			},
		},
	} {
		c.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: unexpected %q", errUsage, args[0])
			}
			return nil
		}
		if c.Name() == "install" {
			c.Flags().Bool("once", false, "never wait: fail when there is no valid network file, and say why")
		}
		addFlags(c)
		root.AddCommand(c)
	}
	return root
}

func (a App) printVersion(c *cobra.Command) { fmt.Fprintln(c.OutOrStdout(), "meshcni-node", a.Version) }

func (a App) settings(c *cobra.Command) (Settings, *slog.Logger, error) {
	s, err := resolve(changed(c), a.Env)
	if err != nil {
		return s, nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return s, slog.New(slog.NewJSONHandler(a.Stderr, &slog.HandlerOptions{Level: level(s.LogLevel)})), nil
}

func level(name string) (l slog.Level) {
	_ = l.UnmarshalText([]byte(name)) // validated
	return l
}

// run is the agent; with untilReady it stops as soon as the plugin is installed.
func (a App) run(c *cobra.Command, untilReady bool) error {
	s, _, err := a.settings(c)
	if err != nil {
		return err
	}
	if s.Repair != "none" && a.Repair == nil && !untilReady {
		return fmt.Errorf("%w: this build has no repair; run meshcni-repair beside it", errUsage)
	}
	var lv slog.LevelVar
	lv.Set(level(s.LogLevel))
	log := slog.New(slog.NewJSONHandler(a.Stderr, &slog.HandlerOptions{Level: &lv}))
	repairs := &repairer{run: a.Repair, log: log, changed: make(chan Settings, 1)}
	reg := prometheus.NewRegistry()
	reg.MustRegister(versionmetric.Collector("meshcni-node"), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	opts := installer.Options{
		Config: s.Config, Log: log, PluginLog: a.Stdout, Registry: reg, UninstallOnExit: s.UninstallOnExit != OnExitKeep,
		MetricsAddress: s.MetricsAddress, HealthAddress: s.HealthAddress,
		Reload: func() (installer.Config, error) {
			next, err := resolve(changed(c), a.Env)
			if err == nil && (next.Repair != s.Repair || next.NodeName != s.NodeName || next.MetricsAddress != s.MetricsAddress ||
				next.HealthAddress != s.HealthAddress || next.UninstallOnExit != s.UninstallOnExit || next.DaemonSetName != s.DaemonSetName) {
				err = errors.New("repair, node-name, metrics-address, health-address, uninstall-on-exit and daemonset-name need a restart of the agent")
			}
			if err == nil {
				lv.Set(level(next.LogLevel))
				repairs.change(next)
			}
			return next.Config, err
		},
	}
	for _, file := range []string{s.configFile, s.pluginConfigFile} {
		if file != "" {
			opts.ReloadDirs = append(opts.ReloadDirs, filepath.Dir(file), file)
		}
	}
	if untilReady {
		opts.MetricsAddress, opts.HealthAddress, opts.UninstallOnExit, opts.Reload = "", "", false, nil
	}
	if s.UninstallOnExit == OnExitAuto && !untilReady {
		leaving, stop := watchDaemonSet(c.Context(), s, log)
		defer stop()
		opts.Leaving = leaving
	}
	agent, err := installer.New(opts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	if untilReady {
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
	var repairErr error
	repaired := make(chan struct{})
	go func() {
		defer close(repaired)
		if a.repairs(s) {
			agent.AddReadiness(repairs.ready)
			if repairErr = repairs.keep(ctx, s, reg, agent.Ready); repairErr != nil {
				log.Error("repair ended", "error", repairErr)
				cancel()
			}
		}
	}()
	err = agent.Run(ctx)
	cancel()
	<-repaired
	return errors.Join(err, repairErr)
}
