package repair

import (
	"context"
	"time"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
)

// Actions lists all actions.
var Actions = actions

// Look returns a function that looks at a node's traces, and returns how many there are.
func Look(cacheDir string, records attachment.Store) func() (networks, recorded int, err error) {
	known := inventory.New(inventory.Options{Records: records, CacheDir: cacheDir})
	return func() (networks, recorded int, err error) {
		found := known.Look()
		for _, r := range found.Rows {
			if r.Record != nil {
				recorded++
			} else {
				networks++
			}
		}
		return networks, recorded, found.Err()
	}
}

// Waiting is how many reports of bypasses wait for their pods.
func (c *Controller) Waiting() (n int) {
	for _, t := range c.tracks.All() {
		if len(t.report.Codes) > 0 {
			n++
		}
	}
	return n
}

// SetPermissions replaces how the controller finds out which permissions are missing.
func (c *Controller) SetPermissions(missing func(context.Context) ([]api.Right, error)) {
	c.permissions = missing
}

// Redirector is what a controller reads and writes the rules of pods by.
type Redirector = redirector

// Cluster is what a controller asks of the API server.
type Cluster = cluster

// On returns options with which a controller acts on a cluster in memory.
func (o Options) On(c Cluster) Options {
	o.cluster = c
	return o
}

// SetCluster replaces the API server.
func (o *Options) SetCluster(c Cluster) { o.cluster = c }

// SetUnheard replaces for how long the API server may tell nothing before that is news.
func (o *Options) SetUnheard(d time.Duration) { o.unheard = d }

// SetRedirector replaces what reads and writes the rules of pods.
func (o *Options) SetRedirector(r Redirector) { o.redirector = r }
