package nodecontrol

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/recent"
)

// exemptions are the Probes of a controller. Each look at a pod asks for all entries, so an answer serves many looks: until it is an age
// old, or the controller changes the set.
type exemptions struct {
	Probes
	last recent.Value[exempted]
}

type exempted struct {
	entries map[netip.Addr]types.UID
	err     error
}

// Entries implements [Probes].
func (x *exemptions) Entries() (map[netip.Addr]types.UID, error) {
	last := x.last.Get(func() (e exempted) {
		e.entries, e.err = x.Probes.Entries()
		return e
	})
	if last.err != nil {
		x.last.Forget()
	}
	return last.entries, last.err
}

// Put implements [Probes].
func (x *exemptions) Put(uid types.UID, addrs []netip.Addr) error {
	defer x.last.Forget()
	return x.Probes.Put(uid, addrs)
}

// Delete implements [Probes].
func (x *exemptions) Delete(uid types.UID) error {
	defer x.last.Forget()
	return x.Probes.Delete(uid)
}
