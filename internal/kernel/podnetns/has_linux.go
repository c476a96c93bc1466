package podnetns

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/netnsexec"
)

// maxAddrs bounds how many addresses of each family are looked at: those of 1000 interfaces with 16 each.
const maxAddrs = 16_000

// Has returns the addresses that a namespace has. It reads until it has seen them all, and at most 16,000 of each family; if they are
// not among those, the error is [ErrLong]. It takes no longer than the context.
func Has(ctx context.Context, ns *netnsexec.NetNS, want []netip.Addr) (Held, error) {
	limit := rtnetlink.Default
	limit.Messages = maxAddrs
	if ctx.Err() != nil {
		return Held{}, context.Cause(ctx)
	}
	if until, ends := ctx.Deadline(); ends {
		limit.Time = min(limit.Time, time.Until(until))
	}
	c := rtnetlink.New(ns, limit)
	defer c.Close()
	h, err := c.Has(want)
	if err != nil {
		return Held{}, fmt.Errorf("read the addresses in %s: %w", ns.ID(), err)
	}
	return Held(h), nil
}
