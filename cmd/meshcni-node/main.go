//go:build linux

// Command meshcni-node puts the meshcni plugin on a node and keeps it there: see package installer, and
// meshcni-node run --help. This program only chooses the operating system's values.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/internal/version"
	"github.com/meshcni/meshcni/repair"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	app := nodecmd.App{Env: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr, Repair: repairPods, Version: version.Long()}
	code := app.Main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// repairPods runs the repair controller in the agent; its finer settings are variables, MESHCNI_REPAIR_NODE_RATE for
// meshcni-repair's --repair-node-rate and so on.
func repairPods(ctx context.Context, o nodecmd.RepairOptions) error {
	s := o.Settings
	options, err := repaircmd.Agent{
		Action: s.Repair, Node: s.NodeName, Dialect: s.Dialect, Backend: s.Backend, UncapturedFamily: s.UncapturedFamily, RefuseProxyUID: s.RefuseProxyUID,
		ExcludeNamespaces: s.ExcludeNamespaces, RunDir: s.RunDir, Host: s.KubernetesHost, Port: s.KubernetesPort, Protocol: s.KubernetesProtocol,
		ServiceAccountDir: s.ServiceAccountDir, Env: os.LookupEnv, Installed: o.InstallerReady, Metrics: o.Registry, Log: o.Log,
	}.Options()
	if err != nil {
		return err
	}
	c, err := repair.New(options)
	if err != nil {
		return err
	}
	o.AddReadiness(c.Ready)
	return c.Run(ctx)
}
