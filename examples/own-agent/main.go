//go:build linux

// Command own-agent is a node agent for a mesh of one's own: it puts the mesh's
// CNI plugin (see custom-plugin) on the node, keeps it there, and repairs pods
// that started without it, all in one process with one readiness.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
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
	o := installer.Options{Config: nodeConfig(), PluginLog: os.Stdout, HealthAddress: ":8000", MetricsAddress: ":15014"}
	return run(ctx, o, api, os.Getenv("NODE_NAME"))
}

// nodeConfig is where things are, and the plugin's entry in the network list:
// its type is the name that the binary gets on the node.
func nodeConfig() installer.Config {
	c := installer.Default()
	c.BinSourceDir = "/opt/acme/bin"
	c.RunDir = "/var/run/acme-cni"
	c.AgentPrefix = acme.AgentPrefix
	c.KubernetesHost, c.KubernetesPort = os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	c.PluginConfig = `{
	  "type": "acme-cni", "run_dir": "/var/run/acme-cni", "pod_namespace": "acme-system", "ready_without_agent": true,
	  "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
	  "capabilities": {"io.kubernetes.cri.pod-annotations": true}
	}`
	return c
}

// run keeps the plugin installed and repairs pods until ctx ends.
func run(ctx context.Context, o installer.Options, api *rest.Config, node string) error {
	o.Log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	o.Registry = prometheus.NewRegistry()
	agent, err := installer.New(o)
	if err != nil {
		return err
	}
	// Acme's pods check their redirection with meshcni-redirect validate, which ends with 126 when it is missing.
	broken := repair.CriteriaFor(acme.New())
	broken.Containers, broken.ExitCodes = []string{"acme-validation"}, []int32{126}
	controller, err := repair.New(repair.Options{
		Config: api, Node: node, Dialect: acme.New(), Action: repair.ActionDelete, Criteria: &broken,
		Installed: agent.Ready, Metrics: o.Registry, Log: o.Log,
	})
	if err != nil {
		return err
	}
	agent.AddReadiness(controller.Ready)

	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return agent.Run(ctx) })
	both.Go(func() error { return controller.Run(ctx) })
	return both.Wait()
}
