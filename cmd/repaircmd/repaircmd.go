// Package repaircmd is the command line of meshcni-repair as a function:
// arguments, environment and streams in, exit code out.
package repaircmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/serve"
	"github.com/meshcni/meshcni/cmd/versionmetric"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/version"
)

// Program is meshcni-repair, or a program like it for a mesh of one's own. The
// zero value is meshcni-repair without environment and output.
type Program struct {
	// Name is the program's. Default meshcni-repair.
	Name string
	// Version is what --version prints after the name. Default: this module's.
	Version string
	// Dialects are those that --dialect may name, the default first. Nil: this
	// module's.
	Dialects []dialect.Dialect
	// Env looks up an environment variable, as os.LookupEnv does. Nil: there are none.
	Env func(string) (string, bool)
	// Stdout gets help, Stderr the log. Nil discards.
	Stdout, Stderr io.Writer
	// SetLog, if not nil, is given the log, for libraries that have a global one.
	SetLog func(*slog.Logger)
}

// Exec runs the program as this process: its arguments, environment, streams
// and signals. It does not return.
func (p Program) Exec() {
	p.Env, p.Stdout, p.Stderr = os.LookupEnv, os.Stdout, os.Stderr
	cli.Exec(p.Main)
}

// Main runs the program until the context ends: 0 done, 1 failed, 2 wrong usage.
// Args are those after the program's name.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	o := &options{Program: p}
	c := &cobra.Command{
		Short: "find this node's pods that started without redirection, and deal with them",
		RunE:  func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	fs := c.Flags()
	fs.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":15014", "address to serve /metrics on; empty for none")
	fs.StringVar(&o.healthAddress, "health-address", ":8000", "address to serve /healthz and /readyz on; empty for none")
	o.register(fs, p.Dialects)
	return cli.Program{Name: p.Name, Version: p.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: c}.Run(ctx, args)
}

func (p *Program) setDefaults() {
	cli.Default(&p.Name, "meshcni-repair")
	cli.Default(&p.Version, version.Long())
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = dialects.All()
	}
}

// options are the settings and what only this program has.
type options struct {
	Program
	Settings
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
	if err := o.Validate(o.Dialects); err != nil {
		return cli.Usage(err)
	}
	log := slog.New(slog.NewJSONHandler(o.Stderr, &slog.HandlerOptions{Level: level}))
	if o.SetLog != nil {
		o.SetLog(log)
	}
	log.Info("starting", "program", o.Name, "version", o.Version)
	if !o.Enabled() {
		log.Warn("repair only reports broken pods; see --repair")
	}
	registry := versionmetric.Registry(o.Name)
	controller, err := o.New(Host{Dialects: o.Dialects, UserAgent: o.Name + "/" + version.String(), Metrics: registry, Log: log})
	if err != nil {
		return err
	}
	closeServers, err := serve.Start(serve.Options{
		HealthAddress: o.healthAddress, MetricsAddress: o.metricsAddress, Ready: controller.Ready, Metrics: registry, Log: log,
	})
	if err != nil {
		return err
	}
	defer closeServers()
	return controller.Run(c.Context())
}

// asker asks a readiness address, and is content for a second with what it said.
func asker(url string) func() error {
	var (
		mu    sync.Mutex
		asked time.Time
		said  error
	)
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(asked) > time.Second {
			said, asked = ask(url), time.Now()
		}
		return said
	}
}

func ask(url string) error {
	client := &http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get(url) //nolint:noctx // the client has a timeout
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
