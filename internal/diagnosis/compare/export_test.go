package compare

import (
	"net/netip"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Count returns how many packets are counted before any is made, and how many are made.
func Count(podAddrs []netip.Addr, programs ...ruleset.Ruleset) (counted, made int, err error) {
	grids, err := gridsOf(podAddrs, programs...)
	for _, g := range grids {
		counted += g.count()
	}
	for range packets(grids) {
		made++
	}
	return counted, made, err
}
