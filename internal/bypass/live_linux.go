package bypass

import (
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/rtnetlink"
)

// Live returns the ways past all rules that the packets of a running pod have, by its network namespace. Addrs are the pod's; none:
// they are not known.
func Live(ns rtnetlink.Socketer, addrs []netip.Addr) (all []dialect.Bypass, err error) {
	c := rtnetlink.New(ns, rtnetlink.Default)
	defer c.Close()
	handed, err := c.Handed(addrs)
	if err != nil {
		return nil, fmt.Errorf("it cannot be told whether the pod's packets are handed on past its rules: %w", err)
	}
	for _, h := range handed {
		all = append(all, dialect.Bypass{Code: dialect.BypassSandboxed, Interface: h.Link, HandedTo: h.To, Unsure: h.Unsure})
	}
	return all, nil
}
