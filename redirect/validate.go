package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// FieldError says that a field of a [Redirect] is invalid. Get at it with
// errors.As(err, &fieldError); several are joined by [errors.Join].
type FieldError struct {
	// Field is the field's path in JSON, such as "proxy.inboundPort".
	Field string
	// Reason names the fault, and the values that are allowed.
	Reason string
}

// Error returns "redirect: FIELD: REASON".
func (e *FieldError) Error() string { return "redirect: " + e.Field + ": " + e.Reason }

// Validate reports all invalid fields, joined. Each error is a [*FieldError], or a
// [*LimitError] if there would be too many rules. A valid Redirect always renders
// to at most [MaxRules] rules, which the kernel takes. Validate takes time in
// proportion to the lists, whatever they multiply to.
func (r Redirect) Validate() error { return errors.Join(append(r.invalid(), r.limit())...) }

// invalid returns an error for each invalid field.
func (r Redirect) invalid() []error {
	v := validator{}
	v.check(r.Mode == ModeRedirect || r.Mode == ModeTProxy, "mode", "%q is not REDIRECT or TPROXY", r.Mode)
	v.family("ipv4", r.IPv4)
	v.family("ipv6", r.IPv6)
	v.check(r.IPv4 != FamilyPass || r.IPv6 != FamilyPass, "ipv4", "pass, as is ipv6: neither is captured, so all traffic bypasses the mesh")
	v.proxy(r.Proxy)
	v.check(r.Proxy.InboundPort != 0 || r.Inbound.Ports.Empty() && !r.Inbound.Ports.IsZero(), "proxy.inboundPort", "0 is no port")
	v.check(!r.Inbound.Ports.IsZero(), "inbound.ports", "unset, so nothing inbound would be captured; if that is meant, say none (NoPorts)")
	v.check(!r.Outbound.CIDRs.IsZero(), "outbound.cidrs", "unset, so no destination would be captured; if that is meant, say none (NoPrefixes)")
	v.check(!r.Outbound.ExcludeCIDRs.All(), "outbound.excludeCIDRs", "all addresses cannot be excluded; make outbound.cidrs none instead")
	v.check(len(r.Outbound.OwnerGroups) == 0 || len(r.Outbound.ExcludeOwnerGroups) == 0,
		"outbound.excludeOwnerGroups", "cannot be set together with outbound.ownerGroups")
	v.ids("outbound.ownerGroups", r.Outbound.OwnerGroups)
	v.ids("outbound.excludeOwnerGroups", r.Outbound.ExcludeOwnerGroups)
	v.check(len(r.Outbound.OwnerGroups) <= maxOwnerGroups, "outbound.ownerGroups", "%d groups; at most %d fit one rule", len(r.Outbound.OwnerGroups), maxOwnerGroups)
	v.check(!r.Inbound.ProbeSources.All(), "inbound.probeSources", "all clients cannot be probes; exclude the ports instead")
	v.check(!r.Inbound.ExcludeSources.All(), "inbound.excludeSources", "all clients cannot be excluded; make inbound.ports none instead")
	v.exclusions(r.Outbound.Exclude)
	v.dns(r.DNS)
	v.check(r.Loopback == LoopbackHairpin || r.Loopback == LoopbackPass || r.Loopback == LoopbackCapture,
		"loopback", "%q is not pass, capture or empty", r.Loopback)
	v.check(r.Localhost == (netip.Prefix{}) || r.Localhost.IsValid() && r.Localhost.Bits() >= loopbackIPv4.Bits() && loopbackIPv4.Contains(r.Localhost.Addr()),
		"localhost", "%s is not a range of 127.0.0.0/8", r.Localhost)
	v.virtualNetworks(r.VirtualNetworks)
	v.check(r.Log.Level <= 7, "log.level", "%d is not from 0 to 7", r.Log.Level)
	v.interfaces("excludeInterfaces", r.ExcludeInterfaces)
	v.interfaces("includeInterfaces", r.IncludeInterfaces)
	v.check(len(r.IncludeInterfaces) <= maxInterfaces, "includeInterfaces", "%d interfaces; at most %d are allowed", len(r.IncludeInterfaces), maxInterfaces)
	each(&v, r.IncludeInterfaces[:min(len(r.IncludeInterfaces), maxInterfaces)], func(_ int, name string) {
		v.check(name != loopback.Name && !slices.Contains(r.VirtualInterfaces, name), "includeInterfaces", "%s is included already", name)
	})
	v.check(r.Outbound.PassUDPPorts.Empty() || !r.Outbound.DropUDPPorts.Empty(), "outbound.passUDPPorts", "means nothing without outbound.dropUDPPorts")
	v.interfaces("virtualInterfaces", r.VirtualInterfaces)
	v.names(r)
	v.own(r)
	return v.errs
}

// maxOwnerGroups bounds the negated owner matches, which are all in one rule.
const maxOwnerGroups = 64

// maxInterfaces bounds the jumps that each hook has for them.
const maxInterfaces = 64

type validator struct{ errs []error }

// maxErrors bounds the errors of one list, which may have 100,000 elements.
const maxErrors = 16

// each calls fn with the elements of a list until there are enough errors.
func each[T any](v *validator, list []T, fn func(i int, element T)) {
	before := len(v.errs)
	for i, e := range list {
		if len(v.errs)-before >= maxErrors {
			return
		}
		fn(i, e)
	}
}

// oncePerFamily checks a list with at most one address of each family.
func (v *validator) oncePerFamily(field string, list []netip.Addr, ok func(netip.Addr) bool) {
	seen := map[ruleset.Family]bool{}
	each(v, list, func(_ int, a netip.Addr) {
		f := ruleset.FamilyOf(a)
		v.check(ok(a) && a.Zone() == "", field, "%q is not an address without zone", a)
		v.check(!seen[f], field, "%s is a second %s address", a, f)
		seen[f] = true
	})
}

func (v *validator) check(ok bool, field, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, &FieldError{field, truncate.Text(fmt.Sprintf(format, args...), maxReason)})
	}
}

func (v *validator) family(field string, m FamilyMode) {
	v.check(m == FamilyCapture || m == FamilyPass || m == FamilyDrop, field, "%q is not capture, pass or drop", m)
}

func (v *validator) ids(field string, ids []uint32) {
	seen := map[uint32]bool{}
	each(v, ids, func(_ int, id uint32) {
		v.check(id != NoID, field, "%d is no id", id)
		v.check(!seen[id], field, "%d is there twice", id)
		seen[id] = true
	})
}

func (v *validator) proxy(p Proxy) {
	v.check(len(p.UIDs)+len(p.GIDs) > 0 || !p.Mark.IsZero(), "proxy.uids", "neither a user nor a group is named, so the proxy's own traffic would be redirected to itself")
	v.check(len(p.UIDs)+len(p.GIDs) == 0 || p.Mark.IsZero(), "proxy.mark", "cannot be set together with proxy.uids and proxy.gids")
	v.check(p.Mark.Value&^fullMask(p.Mark.Mask) == 0, "proxy.mark", "%s has bits outside its mask", p.Mark)
	v.check(p.Mark.IsZero() || p.Mark.Value != 0, "proxy.mark", "0 is the mark of everybody's packets")
	v.ids("proxy.uids", p.UIDs)
	v.ids("proxy.gids", p.GIDs)
	v.check(p.OutboundPort != 0, "proxy.outboundPort", "0 is no port")
	v.check(p.OutboundPort != p.InboundPort || p.OutboundPort == 0, "proxy.inboundPort", "%d is the outbound port too", p.InboundPort)
	v.oncePerFamily("proxy.passSources", p.PassSources, netip.Addr.IsValid)
}

func (v *validator) interfaces(field string, names []string) {
	seen := map[string]bool{}
	each(v, names, func(_ int, n string) {
		v.check(validInterface(n), field, "%q is not an interface name: %s", n, interfaceNames)
		v.check(!seen[n], field, "%q is there twice", n)
		seen[n] = true
	})
}

// maxPrefix is the longest chain prefix: iptables allows 28 bytes for a chain name
// (XT_EXTENSION_MAXNAMELEN less the terminating zero), and our longest suffix takes 11.
const maxPrefix = 16

func (v *validator) names(r Redirect) {
	n := r.Names
	valid := n.ChainPrefix != "" && len(n.ChainPrefix) <= maxPrefix &&
		strings.Trim(n.ChainPrefix, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" &&
		n.ChainPrefix[0] >= 'A' && n.ChainPrefix[0] <= 'Z'
	v.check(valid, "names.chainPrefix", "%q is not 1 to %d capitals, digits and '_', a capital first", n.ChainPrefix, maxPrefix)
	v.check(r.Mode != ModeTProxy || r.Proxy.Mark.IsZero(), "proxy.mark", "needs mode REDIRECT")
	v.check(r.Mode != ModeTProxy || n.MarkMask == 0, "names.markMask", "is for proxy.mark only")
	if !r.Proxy.Mark.IsZero() {
		v.check(n.InboundMark != 0 && n.InboundMark&^fullMask(n.MarkMask) == 0, "names.inboundMark", "%#x is 0 or has bits outside names.markMask", n.InboundMark)
		v.check(n.InboundMark != r.Proxy.Mark.Value, "names.inboundMark", "%#x is the proxy's own mark", n.InboundMark)
		v.routeTable(n.RouteTable)
	}
	v.check(!n.LoopbackIPv6.IsValid() || n.LoopbackIPv6.Is6() && n.LoopbackIPv6.Zone() == "", "names.loopbackIPv6", "%s is not an IPv6 address without zone", n.LoopbackIPv6)
	if r.Mode == ModeTProxy {
		v.check(n.InboundMark != 0 && n.HairpinMark != 0 && n.InboundMark != n.HairpinMark, "names.inboundMark", "inbound and hairpin mark must be different and not 0")
		v.routeTable(n.RouteTable)
	}
	if r.DNS.Enabled() && len(r.DNS.To) == 0 {
		v.check(n.ProxyZone != 0 && n.AppZone != 0 && n.ProxyZone != n.AppZone, "names.proxyZone", "the two zones must be different and not 0")
	}
}

func (v *validator) routeTable(t uint32) {
	v.check(t != 0 && (t < 253 || t > 255), "names.routeTable", "%d is one of the kernel's own tables", t)
}

func (v *validator) exclusions(list []Exclusion) {
	each(v, list, func(i int, e Exclusion) {
		field := fmt.Sprintf("outbound.exclude[%d]", i)
		v.check(e.Protocol.proto() != ruleset.AnyProto || e.Protocol == "", field+".protocol", "%q is not tcp, udp or empty", e.Protocol)
		v.check(!e.Ports.Empty(), field+".ports", "none would exclude nothing; all is %q", "*")
		v.check(!e.CIDRs.Empty(), field+".cidrs", "none would exclude nothing; all is %q", "*")
		v.check(e.Ports.All() || e.Protocol != "", field+".ports", "needs a protocol")
		v.check(e.Protocol != "" || !e.CIDRs.All() || len(e.UIDs) > 0, field, "says nothing, so it would exclude everything")
		each(v, e.UIDs, func(_ int, r IDRange) {
			v.check(r.First <= r.Last && r.Last != NoID, field+".uids", "%s is no range of ids", r)
		})
	})
}

func (v *validator) dns(d DNS) {
	v.check(!d.Enabled() || d.Port != 0 || len(d.To) > 0, "dns.port", "is needed when dns.servers are captured")
	v.check(d.Port == 0 || len(d.To) == 0, "dns.to", "cannot be set together with dns.port")
	v.check(!d.TCPOutbound || d.UDPOnly, "dns.tcpOutbound", "needs dns.udpOnly: else look-ups over TCP are captured as such")
	v.check(!d.Everyone || len(d.To) > 0, "dns.everyone", "needs dns.to: the proxy's own look-ups cannot go to the proxy")
	addrs := make([]netip.Addr, len(d.To))
	for i, to := range d.To {
		addrs[i] = to.Addr()
	}
	v.oncePerFamily("dns.to", addrs, func(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() })
}

func (v *validator) virtualNetworks(networks []VirtualNetwork) {
	type key struct {
		name   string
		family ruleset.Family
	}
	seen := map[key]bool{}
	each(v, networks, func(i int, n VirtualNetwork) {
		field := fmt.Sprintf("virtualNetworks[%d]", i)
		v.check(ValidInterfacePattern(n.Interface), field+".interface", "%q is not an interface name: %s, and '+' at the end for any name that begins so", n.Interface, interfaceNames)
		v.check(n.Local.IsValid(), field+".local", "is needed")
		k := key{n.Interface, ruleset.FamilyOf(n.Local.Addr())}
		v.check(!seen[k], field, "%s has a second %s network", n.Interface, k.family)
		seen[k] = true
	})
}
