package redirect

import (
	"errors"
	"fmt"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// FieldError is one field of a [Redirect] that cannot be. Get at it with
// errors.As(err, &fieldError); several are joined, see [errors.Join].
type FieldError struct {
	// Field is the field's path in JSON, such as "proxy.inboundPort".
	Field string
	// Reason is what is wrong and what is allowed.
	Reason string
}

// Error returns "redirect: FIELD: REASON".
func (e *FieldError) Error() string { return "redirect: " + e.Field + ": " + e.Reason }

// Validate reports every field that cannot be, joined; each is a [*FieldError].
// A Redirect that validates always renders to rules that the kernel takes.
func (r Redirect) Validate() error {
	v := validator{}
	v.check(r.Mode == ModeRedirect || r.Mode == ModeTProxy, "mode", "%q is not REDIRECT or TPROXY", r.Mode)
	v.family("ipv4", r.IPv4)
	v.family("ipv6", r.IPv6)
	v.proxy(r.Proxy)
	v.check(!r.Outbound.ExcludeCIDRs.All(), "outbound.excludeCIDRs", "all addresses cannot be excluded; make outbound.cidrs none instead")
	v.check(len(r.Outbound.OwnerGroups) == 0 || len(r.Outbound.ExcludeOwnerGroups) == 0,
		"outbound.excludeOwnerGroups", "cannot be set together with outbound.ownerGroups")
	v.ids("outbound.ownerGroups", r.Outbound.OwnerGroups)
	v.ids("outbound.excludeOwnerGroups", r.Outbound.ExcludeOwnerGroups)
	v.check(len(r.Outbound.OwnerGroups) <= maxOwnerGroups, "outbound.ownerGroups", "%d groups; at most %d fit one rule", len(r.Outbound.OwnerGroups), maxOwnerGroups)
	v.check(!r.DNS.Enabled() || r.DNS.Port != 0, "dns.port", "is needed when dns.servers are captured")
	v.interfaces("excludeInterfaces", r.ExcludeInterfaces)
	v.interfaces("virtualInterfaces", r.VirtualInterfaces)
	v.names(r)
	return errors.Join(v.errs...)
}

// maxOwnerGroups bounds the negated owner matches of one rule, which all must
// be in one. A rule of iptables holds far more; this is a pod's plenty.
const maxOwnerGroups = 64

type validator struct{ errs []error }

func (v *validator) check(ok bool, field, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, &FieldError{field, fmt.Sprintf(format, args...)})
	}
}

func (v *validator) family(field string, m FamilyMode) {
	v.check(m == FamilyCapture || m == FamilyPass || m == FamilyDrop, field, "%q is not capture, pass or drop", m)
}

func (v *validator) ids(field string, ids []uint32) {
	seen := map[uint32]bool{}
	for _, id := range ids {
		v.check(id != NoID, field, "%d is no id", id)
		v.check(!seen[id], field, "%d is there twice", id)
		seen[id] = true
	}
}

func (v *validator) proxy(p Proxy) {
	v.check(len(p.UIDs)+len(p.GIDs) > 0, "proxy.uids", "neither a user nor a group is named, so the proxy's own traffic would be redirected to itself")
	v.ids("proxy.uids", p.UIDs)
	v.ids("proxy.gids", p.GIDs)
	v.check(p.OutboundPort != 0, "proxy.outboundPort", "0 is no port")
	v.check(p.InboundPort != 0, "proxy.inboundPort", "0 is no port")
	v.check(p.OutboundPort != p.InboundPort || p.OutboundPort == 0, "proxy.inboundPort", "%d is the outbound port too", p.InboundPort)
	seen := map[ruleset.Family]bool{}
	for _, a := range p.PassSources {
		f := ruleset.FamilyOf(a)
		v.check(a.IsValid() && a.Zone() == "", "proxy.passSources", "%q is not an address without zone", a)
		v.check(!seen[f], "proxy.passSources", "%s is a second %s address", a, f)
		seen[f] = true
	}
}

func (v *validator) interfaces(field string, names []string) {
	seen := map[string]bool{}
	for _, n := range names {
		v.check(ValidInterface(n), field, "%q is not an interface name: %s", n, interfaceNames)
		v.check(!seen[n], field, "%q is there twice", n)
		seen[n] = true
	}
}

func (v *validator) names(r Redirect) {
	n := r.Names
	valid := n.ChainPrefix != "" && len(n.ChainPrefix) <= ruleset.MaxPrefix &&
		strings.Trim(n.ChainPrefix, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" &&
		n.ChainPrefix[0] >= 'A' && n.ChainPrefix[0] <= 'Z'
	v.check(valid, "names.chainPrefix", "%q is not 1 to %d capitals, digits and '_', a capital first", n.ChainPrefix, ruleset.MaxPrefix)
	if r.Mode == ModeTProxy {
		v.check(n.InboundMark != 0 && n.HairpinMark != 0 && n.InboundMark != n.HairpinMark, "names.inboundMark", "inbound and hairpin mark must be different and not 0")
		v.check(n.RouteTable != 0 && (n.RouteTable < 253 || n.RouteTable > 255), "names.routeTable", "%d is one of the kernel's own tables", n.RouteTable)
	}
	if r.DNS.Enabled() {
		v.check(n.ProxyZone != 0 && n.AppZone != 0 && n.ProxyZone != n.AppZone, "names.proxyZone", "the two zones must be different and not 0")
	}
}
