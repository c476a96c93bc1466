//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/api/inpod"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/daemonset"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/program/version"
)

// reach returns how the agent reaches the API server.
func (o Options) reach(s Config) (*rest.Config, error) {
	var c *rest.Config
	switch {
	case o.API != nil:
		c = rest.CopyConfig(o.API)
	case s.KubernetesHost == "":
		return nil, errors.New("no API server: kubernetes-service-host (KUBERNETES_SERVICE_HOST) is not set")
	default:
		c = inpod.Config(s.KubernetesProtocol, s.KubernetesHost, s.KubernetesPort, s.ServiceAccountDir)
	}
	c.UserAgent = version.Agent(o.name(), s.Identity.Version)
	return c, nil
}

// client returns the agent's one client of the API server, or, without an agent, a new one of the settings. It is made once, since none of what it is
// made of changes while the agent runs: the files of the service account are read again when they change.
func (o Options) client(s Config) (*api.Client, error) {
	if o.made != nil {
		return o.made()
	}
	config, err := o.reach(s)
	if err != nil {
		return nil, err
	}
	return api.New(s.Identity, config, s.Node)
}

// repairAPI is the same for repair, which says so if the agent has no token.
func (o Options) repairAPI(s Config) (*api.Client, error) {
	if o.API == nil && s.KubernetesHost != "" {
		if _, err := os.Stat(inpod.Token(s.ServiceAccountDir)); err != nil {
			return nil, fmt.Errorf("read the service account's token: %w", err)
		}
	}
	return o.client(s)
}

// events starts the one sink of the agent's events, about its node and about pods.
func (o Options) events(s Config) (events *nodeevents.Events, stop func()) {
	return nodeevents.Source{API: func() (*api.Client, error) { return o.client(s) }, Component: o.name(), Node: s.Node, Log: o.Log}.Start()
}

// watchDaemonSet watches the agent's DaemonSet until stop, beyond the end of ctx: leaving is called after that.
func (o Options) watchDaemonSet(ctx context.Context, s Config, log *slog.Logger) (leaving func(context.Context) (bool, string), stop func()) {
	w := daemonset.New(daemonset.Source{
		API:       func() (*api.Client, error) { return o.client(s) },
		Namespace: s.Plugin.PodNamespace, Name: s.DaemonSetName, Node: s.Node,
	}, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	return w.Leaving, func() {
		cancel()
		running.Wait()
	}
}
