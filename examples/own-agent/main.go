//go:build linux

// Command own-agent is a node agent for a mesh of one's own: it puts the mesh's
// CNI plugin (see custom-plugin) on the node, keeps it there, and repairs pods
// that started without it, all in one process with one readiness.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/repair"
)

func main() {
	if err := inCluster(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func inCluster() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	api, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	o := installer.Options{Config: nodeConfig(), PluginLog: os.Stdout}
	return run(ctx, o, api, os.Getenv("NODE_NAME"), ":8000")
}

// nodeConfig says where things are, and what the plugin's entry is. Its type is
// the name that the binary gets on the node.
func nodeConfig() installer.Config {
	c := installer.Default()
	c.Plugin.Type, c.Plugin.Dialect, c.Plugin.PodNamespace = "acme-cni", "acme", "acme-system"
	c.Plugin.ReadyWithoutAgent = true
	c.BinSourceDir, c.BinaryName = "/opt/acme/bin", "acme-cni"
	c.RunDir = "/var/run/acme-cni"
	c.AgentPrefix = acme.AgentPrefix
	c.KubernetesHost, c.KubernetesPort = os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	return c
}

// run keeps the plugin installed and repairs pods until ctx ends. It serves
// /healthz, /readyz and /metrics on listen.
func run(ctx context.Context, o installer.Options, api *rest.Config, node, listen string) error {
	o.Log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	registry := prometheus.NewRegistry()
	o.Registry = registry
	agent, err := installer.New(o)
	if err != nil {
		return err
	}
	// Acme's pods check their redirection with meshcni-redirect validate, which ends with 126 when it is missing.
	flags := repair.Flags{
		Action: string(repair.ActionDelete), Node: node, NodeBudget: repair.DefaultNodeBudget,
		InitContainer: "acme-validation", ExitCodes: "126", Label: repair.DefaultLabel + "=" + repair.DefaultLabelValue,
	}
	controller, stop, err := flags.Open(repair.Host{
		Config: api, Dialect: acme.New(), Installed: agent.Ready, Metrics: o.Registry, Log: o.Log,
	})
	if err != nil {
		return err
	}
	defer stop()

	mux := http.NewServeMux()
	mux.Handle("/", agent.Handler(controller.Ready))
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: time.Second}
	defer func() { _ = server.Close() }()
	go func() { _ = server.ListenAndServe() }() // pods are captured even if the port is taken

	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return agent.Run(ctx) })
	both.Go(func() error { return controller.Run(ctx) })
	return both.Wait()
}
