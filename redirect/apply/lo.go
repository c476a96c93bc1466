//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// onLo reports whether a fixture is an address of lo or a route by it.
func (x fixture) onLo() bool { return x.kind != policyRule }

// loPatience bounds the runtime's time to bring lo up. CRI-O and containerd 2 do it before they
// call any plugin; containerd 1 by the plugin "loopback", within some milliseconds. That plugin
// fails if lo already has an address that is not a loopback address, so it goes first.
const loPatience = 250 * time.Millisecond

// raiseLo brings lo up, unless the runtime does: the kernel takes no IPv6 route by a link that is
// down (ENETDOWN). A pod's lo is always up in the end, so it stays up even if the rest fails.
func (p *plumbing) raiseLo(ctx context.Context, x fixture) error {
	if p.loUp || !x.onLo() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loPatience)
	defer cancel()
	for waited := false; !waited; {
		up, err := p.conn().Up(loIndex)
		if err != nil {
			return fmt.Errorf("look at lo: %w", err)
		}
		if up {
			p.loUp = true
			return nil
		}
		select {
		case <-ctx.Done():
			waited = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := p.conn().SetUp(loIndex); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	p.loUp = true
	return nil
}

const (
	ipv6OffFile   = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"
	ipv6OffReason = "IPv6 is switched off on lo (sysctl net.ipv6.conf.lo.disable_ipv6)"
)

// refusedForOff reports whether the kernel may have refused because IPv6 is off on lo: EACCES of an
// address (addrconf_add_dev in net/ipv6/addrconf.c) or a route (ip6_route_info_create_nh in
// net/ipv6/route.c). A security module may answer the same, so ipv6Off has to confirm it.
func refusedForOff(x fixture, err error) bool {
	return x.family == ruleset.IPv6 && x.onLo() && errors.Is(err, unix.EACCES)
}

// ipv6Off reports whether IPv6 is off on lo. Setting it for "all" sets it there too.
func (p *plumbing) ipv6Off() (off bool, err error) {
	err = p.ns.Do(func() error {
		text, err := os.ReadFile(ipv6OffFile)
		off = strings.TrimSpace(string(text)) != "0"
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look whether IPv6 is off on lo: %w", err)
	}
	return off, nil
}
