package plugin

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// kernelNetNS is a NetNS of the kernel.
type kernelNetNS struct {
	*netnsexec.NetNS
	broken map[ruleset.Backend]string // see apply.Options
}

// OpenNetNS is the default of Plugin.OpenNetNS: it opens a namespace of the kernel. Its errors are those of
// [netnsexec.Open].
func OpenNetNS(path string) (NetNS, error) {
	ns, err := netnsexec.Open(path)
	if err != nil {
		return nil, err
	}
	return kernelNetNS{NetNS: ns}, nil
}

// Backend implements NetNS. Programs run in the sandbox, away from the host's xtables lock and name services.
func (k kernelNetNS) Backend(ctx context.Context, name ruleset.Backend) (Backend, error) {
	return apply.Choose(ctx, k.NetNS, apply.Options{Backend: name, Runner: k.Sandbox(), Broken: k.broken})
}

// Kernel implements NetNS.
func (k kernelNetNS) Kernel() (redirect.Kernel, error) { return apply.Kernel(k.NetNS) }

// Bypasses implements NetNS.
func (k kernelNetNS) Bypasses(addrs []netip.Addr) ([]dialect.Bypass, error) {
	return bypass.Live(k.NetNS, addrs)
}

// linkLocalIPv4 returns an IPv4 address of the namespace that is good on its node alone; invalid: there is none, or it cannot be told.
func (k kernelNetNS) linkLocalIPv4() (found netip.Addr) {
	_ = k.Do(func() error {
		all, err := net.InterfaceAddrs()
		for _, a := range all {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() && prefix.Addr().IsLinkLocalUnicast() {
				found = prefix.Addr()
			}
		}
		return err
	})
	return found
}

// Addrs implements NetNS.
func (k kernelNetNS) Addrs(ifName string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	err := k.Do(func() error {
		// Package net asks the kernel from the calling thread and starts no other.
		interfaces, err := net.Interfaces()
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		named := slices.IndexFunc(interfaces, func(i net.Interface) bool { return i.Name == ifName })
		if named > 0 {
			first := interfaces[named]
			interfaces = slices.Insert(slices.Delete(interfaces, named, named+1), 0, first)
		}
		for _, i := range interfaces {
			found, err := i.Addrs()
			if err != nil {
				return fmt.Errorf("list addresses of %s: %w", i.Name, err)
			}
			for _, a := range found {
				prefix, err := netip.ParsePrefix(a.String())
				if err == nil && prefix.Addr().IsGlobalUnicast() {
					addrs = append(addrs, prefix.Addr())
				}
			}
		}
		return nil
	})
	return addrs, err
}
