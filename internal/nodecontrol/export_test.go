package nodecontrol

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bound sets how long one attempt at a pod may take, and from which time in its namespace on it counts as slow: so a test says which pods
// are slow, and not the load of the machine. It is for before Run.
func (c *Controller) Bound(bounds func(types.UID) (attempt, look time.Duration)) { c.bounds = bounds }

// LookAgain reports whether a pod counts as slow, and has it looked at once more if it does.
func (c *Controller) LookAgain(uid types.UID) bool {
	slow := c.keeper.Slow(uid)
	if slow {
		c.queue.Add(uid)
	}
	return slow
}

// DeafAfter sets for how long nobody may listen for peers before they are told. It is for before Run.
func (c *Controller) DeafAfter(d time.Duration) { c.deafTime = d }

// SettleFor sets how long a pod may wait for what is on its way to a proxy that is told at once. It is for before Run.
func (c *Controller) SettleFor(d time.Duration) { c.settleTime = d }

// Meter is what tells whether peers use the tunnel.
type Meter = meter

// Used reports whether peers have used the tunnel since it was last asked.
func (m *meter) Used(received map[netip.AddrPort]uint64, now time.Time) bool {
	return m.used(received, now)
}
