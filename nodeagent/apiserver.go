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

	"github.com/meshcni/meshcni/internal/daemonset"
	"github.com/meshcni/meshcni/internal/inpod"
	"github.com/meshcni/meshcni/internal/nodeevents"
	"github.com/meshcni/meshcni/internal/version"
)

// api returns the agent's own way to the API server.
func (o Options) api(s Config) (*rest.Config, error) {
	var c *rest.Config
	switch {
	case o.API != nil:
		c = rest.CopyConfig(o.API)
	case s.KubernetesHost == "":
		return nil, errors.New("no API server: kubernetes-service-host (KUBERNETES_SERVICE_HOST) is not set")
	default:
		c = inpod.Config(s.KubernetesProtocol, s.KubernetesHost, s.KubernetesPort, s.ServiceAccountDir)
	}
	c.UserAgent = o.name()
	return c, nil
}

// The bounds of repair's requests to the API server, so that a node full of broken pods does not overload it.
const (
	requestsPerSecond = 20
	requestsAtOnce    = 40
)

// repairAPI is the same for repair.
func (o Options) repairAPI(s Config) (*rest.Config, error) {
	c, err := o.api(s)
	if err != nil {
		return nil, err
	}
	if o.API == nil {
		if _, err := os.Stat(c.BearerTokenFile); err != nil {
			return nil, fmt.Errorf("read the service account's token: %w", err)
		}
	}
	c.QPS, c.Burst = requestsPerSecond, requestsAtOnce
	c.UserAgent = version.Agent(o.name(), o.Config.Identity.Version)
	return c, nil
}

// events starts the one sink of the agent's events, about its node and about pods.
func (o Options) events(s Config) (events *nodeevents.Events, stop func()) {
	return nodeevents.Source{Config: func() (*rest.Config, error) { return o.api(s) }, Component: o.name(), Node: s.Node, Log: o.Log}.Start()
}

// watchDaemonSet watches the agent's DaemonSet until stop, beyond the end of ctx: leaving is called after that.
func (o Options) watchDaemonSet(ctx context.Context, s Config, log *slog.Logger) (leaving func(context.Context) (bool, string), stop func()) {
	w := daemonset.New(daemonset.Source{
		Config:    func() (*rest.Config, error) { return o.api(s) },
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
