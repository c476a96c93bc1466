//go:build linux

// Command own-agent is a node agent for a mesh of your own, without flags: it installs the mesh's CNI plugin (see custom-plugin),
// keeps it on the node and looks for pods that started without it. A controller of your own runs in the same process.
package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/nodeagent"
)

func options(env func(string) string, log *slog.Logger) nodeagent.Options {
	c := nodeagent.DefaultConfig(acme.Identity)
	c.Node, c.KubernetesHost, c.KubernetesPort = env("NODE_NAME"), env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	c.Plugin.Dialects, c.Plugin.ReadyWithoutAgent = []string{"acme"}, true
	c.MetricsAddress, c.HealthAddress = "", "" // run serves
	return nodeagent.Options{Dialects: []dialect.Dialect{acme.New()}, Config: c, Log: log}
}

// run runs the agent, what it serves, and a controller beside it, until the context ends.
func run(ctx context.Context, o nodeagent.Options, address string, controller func(context.Context, *nodeagent.Agent) error) error {
	agent, err := nodeagent.New(o)
	if err != nil {
		return err
	}
	server := http.Server{Addr: address, Handler: agent, ReadHeaderTimeout: maxWait}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return agent.Run(ctx) })
	all.Go(func() error { return controller(ctx, agent) })
	all.Go(server.ListenAndServe)
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := all.Wait(); ctx.Err() == nil || err != http.ErrServerClosed { //nolint:errorlint // as net/http says
		return err
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(ctx, options(os.Getenv, log), ":8000", Reporter{Log: log}.Run); err != nil {
		log.Error("the agent ended", "error", err)
		os.Exit(1)
	}
}
