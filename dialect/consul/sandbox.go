package consul

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The keys of CNI_ARGS that Consul's plugin reads where there is no Kubernetes.
const (
	// iptablesConfig holds the JSON of RedirectTrafficConfig. Nomad writes it for a
	// group with a transparent_proxy block.
	iptablesConfig = "CONSUL_IPTABLES_CONFIG"
	// addressArg holds the sandbox's address (CNI conventions, "ip").
	addressArg = "IP"
)

// buildSandbox is build for one of Nomad's sandboxes.
func buildSandbox(args map[string]string, in dialect.Input) (dialect.Reading, error) {
	r := DefaultRedirect()
	p := parser{Notes: dialect.Notes{Source: redirect.FromArgs}, root: iptablesConfig, redirect: &r}
	p.config(args[iptablesConfig], p.byAddress(args[addressArg], in.Addrs))
	return p.done(r)
}

// byAddress decides about dual stack, which the JSON lacks, as Consul's plugin does: by the address that the runtime
// names. Without one, a sandbox with IPv6 addresses only counts as dual stack; Consul's plugin does not capture it.
func (p *parser) byAddress(value string, addrs []netip.Addr) bool {
	is6 := func(a netip.Addr) bool { return ruleset.FamilyOf(a) == ruleset.IPv6 }
	dualStack := len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !is6(a) })
	if value != "" {
		a, err := netip.ParseAddr(value)
		if err != nil || a.Zone() != "" {
			p.Refuse(addressArg, value, "an address", fmt.Errorf("%q is no address", value))
			return false
		}
		dualStack = is6(a.Unmap())
		p.Set("ipv6", addressArg, value)
	}
	if dualStack {
		p.redirect.IPv6 = redirect.FamilyCapture
	}
	return dualStack
}
