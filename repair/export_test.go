package repair

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/repair/internal/kube"
)

// Look returns a function that looks at a node's traces, and returns how many there are.
func Look(cacheDir string, records attachment.Store) func() (networks, recorded int, err error) {
	t := newTracer(cacheDir, records)
	return func() (int, int, error) {
		found := t.look()
		return len(found.networks), len(found.records), found.err
	}
}

// Waiting is how many reports of bypasses wait for their pods.
func (c *Controller) Waiting() int {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	return len(c.reports.byPod)
}

// SetPermissions replaces how the controller finds out which permissions are missing.
func (c *Controller) SetPermissions(missing func(context.Context) ([]kube.Permission, error)) {
	c.permissions = missing
}

// SetLeases gives the controller a cluster budget in leases.
func (c *Controller) SetLeases(l *FakeLeases, b Budget) {
	c.clusterBudget = &leaseBudget{leases: l, lease: types.NamespacedName{Namespace: "ns", Name: "budget"}, tokens: "meshcni.io/repair-tokens", Budget: b}
}
