//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/daemonset"
	"github.com/meshcni/meshcni/internal/nodeevents"
)

// componentName is the agent's name to the API server.
const componentName = "meshcni-node"

// tell returns what tells the node's object of the agent's news, until stop. It does nothing without the node's name.
func tell(s Settings, component string, log *slog.Logger) (notify func(installer.Notice), stop func()) {
	if s.Repair.Node == "" {
		return nil, func() {}
	}
	event, stop := nodeevents.Source{Config: func() (*rest.Config, error) { return s.apiConfig(componentName) }, Component: component, Node: s.Repair.Node, Log: log}.Start()
	return func(n installer.Notice) { event(n.Warning, string(n.Code), n.Text) }, stop
}

// watchDaemonSet watches the agent's DaemonSet until stop, beyond the end of ctx: leaving is called after that.
func watchDaemonSet(ctx context.Context, s Settings, log *slog.Logger) (leaving func(context.Context) (bool, string), stop func()) {
	w := daemonset.New(daemonset.Source{
		Config:    func() (*rest.Config, error) { return s.apiConfig(componentName) },
		Namespace: s.Plugin.PodNamespace, Name: s.DaemonSetName,
	}, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	return w.Leaving, func() {
		cancel()
		running.Wait()
	}
}

// apiConfig is the agent's own way to the API server.
func (s Settings) apiConfig(userAgent string) (*rest.Config, error) {
	if s.KubernetesHost == "" {
		return nil, errors.New("no API server: kubernetes-service-host (KUBERNETES_SERVICE_HOST) is not set")
	}
	c := s.Repair.API.Config()
	c.UserAgent = userAgent
	return c, nil
}
