package nodeproxy

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bound sets how long one attempt at a pod may take, and from which time in its namespace on it counts as slow: so a test says which pods
// are slow, and not the load of the machine. It is for before Run.
func (c *Controller) Bound(bounds func(types.UID) (attempt, look time.Duration)) { c.bounds = bounds }
