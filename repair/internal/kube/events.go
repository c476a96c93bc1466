package kube

import (
	"log/slog"

	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/internal/nodeevents"
)

// Recorder returns a recorder for the product's repair, and a function that stops it. If the server refuses events, the recorder
// calls denied and drops them.
func (c *Client) Recorder(log *slog.Logger, denied func(error)) (events record.EventRecorder, stop func()) {
	all, stop := nodeevents.Source{Client: c.core, Component: c.component, Node: c.node, Log: log, Denied: denied}.Start()
	return all.Recorder(c.component), stop
}
