// Package repaircmd implements the command line of meshcni-repair, which finds the pods of one node that started
// without redirection, and labels, deletes or repairs them. A [Program] with other dialects serves your own mesh.
package repaircmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/internal/program/versionmetric"
	"github.com/meshcni/meshcni/repair"
)

// Program is the repair program. The zero value is meshcni-repair with no environment, whose output is discarded.
type Program struct {
	// Identity is the product's.
	Identity meshcni.Identity
	// Dialects are the values of --dialect; the first is the default. Nil means those of this module.
	Dialects []dialect.Dialect
	// Env looks up an environment variable, like os.LookupEnv. Nil: none is set.
	Env func(string) (string, bool)
	// Stdout receives help and version, Stderr the log. Nil discards.
	Stdout, Stderr io.Writer
	// SetLog is called with the log, for libraries with a global logger. Default: none.
	SetLog func(*slog.Logger)
}

// Exec runs the program with the arguments, environment and streams of this
// process, until SIGINT or SIGTERM, and then exits. It does not return.
func (p Program) Exec() {
	p.Env, p.Stdout, p.Stderr = os.LookupEnv, os.Stdout, os.Stderr
	cli.Exec(p.Main)
}

// Main runs the program with args, which do not include the program's name, until ctx ends. It returns the exit code: 0
// for success, 1 for failure, 2 for wrong usage.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	if cli.Invalid(p.Stderr, p.name(), p.Identity.Validate(), cli.NoDialects(p.Dialects)) {
		return cli.ExitFailed
	}
	o := &options{Program: p}
	o.Options.Identity = p.Identity
	c := &cobra.Command{
		Short: "find this node's pods that started without redirection, and deal with them",
		RunE:  func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	fs := c.Flags()
	fs.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":15014", "address to serve /metrics on; empty for none")
	fs.StringVar(&o.healthAddress, "health-address", ":8000", "address to serve /healthz and /readyz on; empty for none")
	o.register(fs, p.Dialects)
	return cli.Program{Name: p.name(), Version: p.Identity.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: c}.Run(ctx, args)
}

func (p *Program) setDefaults() {
	p.Identity = p.Identity.WithDefaults()
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = builtin.All()
	}
}

func (p Program) name() string { return p.Identity.Program("repair") }

// options are the settings and the flags that only this program has.
type options struct {
	Program
	settings
	logLevel, metricsAddress, healthAddress string
}

func (o *options) run(c *cobra.Command) error {
	if err := cli.Fill(c.Flags(), cli.Env(o.Env)); err != nil {
		return cli.Usage(err)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return cli.Usagef("--log-level: %w", err)
	}
	made, err := o.options(o.Dialects)
	if err != nil {
		return cli.Usage(err)
	}
	log := cli.Logger(o.Stderr, level)
	if o.SetLog != nil {
		o.SetLog(log)
	}
	log.Info("starting", "program", o.name(), "version", cmp.Or(o.Program.Identity.Version, version.Long()))
	if !o.acts() {
		log.Warn("repair only reports broken pods; see --repair")
	}
	registry := versionmetric.Registry(o.Program.Identity, o.name())
	made.Metrics, made.Log = registry, log
	if made.Config, err = o.restConfig(version.Agent(o.name(), o.Program.Identity.Version)); err != nil {
		return err
	}
	controller, err := repair.New(made)
	if err != nil {
		return err
	}
	closeServers, err := serve.Start(serve.Options{
		HealthAddress: o.healthAddress, MetricsAddress: o.metricsAddress, Ready: controller.Ready, News: controller.News, Metrics: registry, Log: log,
	})
	if err != nil {
		return err
	}
	defer closeServers()
	return controller.Run(c.Context())
}

// asker returns a function that asks a readiness URL at most once a second.
func asker(url string) func() error {
	var said recent.Value[error]
	return func() error { return said.Get(func() error { return ask(url) }) }
}

func ask(url string) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{}} // and no proxy
	resp, err := client.Get(url)                                                   //nolint:noctx // the client has a timeout
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	why, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	return fmt.Errorf("%s says %s: %s", url, resp.Status, strings.TrimSpace(string(why)))
}
