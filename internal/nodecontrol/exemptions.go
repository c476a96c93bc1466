package nodecontrol

import (
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// exemptions are the Probes of a controller. Each look at a pod asks for all entries, so an answer serves many looks: until it is an age
// old, or the controller changes the set.
type exemptions struct {
	Probes
	age time.Duration

	mu      sync.Mutex // held while the kernel is asked, so that no answer from before a change is kept after it
	entries map[netip.Addr]types.UID
	read    time.Time // zero: there is no answer
}

// Entries implements [Probes].
func (x *exemptions) Entries() (map[netip.Addr]types.UID, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.read.IsZero() && time.Since(x.read) < x.age {
		return x.entries, nil
	}
	begin := time.Now()
	entries, err := x.Probes.Entries()
	if err != nil {
		return nil, err
	}
	x.entries, x.read = entries, begin
	return entries, nil
}

// Put implements [Probes].
func (x *exemptions) Put(uid types.UID, addrs []netip.Addr) error {
	defer x.changed()
	return x.Probes.Put(uid, addrs)
}

// Delete implements [Probes].
func (x *exemptions) Delete(uid types.UID) error {
	defer x.changed()
	return x.Probes.Delete(uid)
}

func (x *exemptions) changed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.entries, x.read = nil, time.Time{}
}
