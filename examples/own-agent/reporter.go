//go:build linux

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/meshcni/meshcni/nodeagent"
)

const (
	maxWait     = 5 * time.Second
	reportEvery = time.Second
)

// Reporter is a controller of the embedder's own: it says once of each pod of the node that somebody should look after it.
type Reporter struct{ Log *slog.Logger }

// Run looks until the context ends.
func (r Reporter) Run(ctx context.Context, agent *nodeagent.Agent) error {
	said := map[string]bool{}
	for {
		for _, p := range agent.Status().Pods {
			if !said[p.UID] && p.NeedsAttention() {
				said[p.UID] = true
				r.Log.Warn("a pod needs attention", "namespace", p.Namespace, "pod", p.Name, "state", p.State, "reason", p.Reason)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reportEvery):
		}
	}
}
