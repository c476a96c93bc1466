package explain

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Fate is a typical packet and its trace.
type Fate struct {
	What   string        `json:"what"`
	Packet trace.Packet  `json:"packet"`
	Result *trace.Result `json:"result,omitempty"`
	Error  string        `json:"error,omitempty"`
}

// Example are addresses for each kind of destination. Pod is the explained pod's own where it has one of the family.
type Example struct{ Pod, Service, Resolver, Outside, Client, Loopback netip.Addr }

// examples are from the documentation prefixes (RFC 5737, RFC 3849) and from the usual ranges of a cluster.
var examples = map[ruleset.Family]Example{
	ruleset.IPv4: {
		netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.96.5.5"), netip.MustParseAddr("10.96.0.10"),
		netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("10.244.2.7"), netip.AddrFrom4([4]byte{127, 0, 0, 1}),
	},
	ruleset.IPv6: {
		netip.MustParseAddr("fd00:10:244::5"), netip.MustParseAddr("fd00:10:96::5"), netip.MustParseAddr("fd00:10:96::a"),
		netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("fd00:10:244:2::7"), netip.IPv6Loopback(),
	},
}

// Example returns the addresses of a family.
func (x Explanation) Example(f ruleset.Family) Example {
	e := examples[f]
	if i := slices.IndexFunc(x.Subject.Addrs, ofFamily(f)); i >= 0 {
		e.Pod = x.Subject.Addrs[i]
	}
	return e
}

// typical traces the packets that users ask about, for each family that the pod or the rules have.
func (x Explanation) typical() []Fate {
	var fates []Fate
	for _, f := range ruleset.Families {
		if x.Plan.Ruleset.Family(f) != nil || slices.ContainsFunc(x.Subject.Addrs, ofFamily(f)) {
			fates = append(fates, x.typicalOf(f)...)
		}
	}
	return fates
}

func ofFamily(f ruleset.Family) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return ruleset.FamilyOf(a) == f }
}

func (x Explanation) typicalOf(f ruleset.Family) []Fate {
	e := x.Example(f)
	r := x.Plan.Redirect
	appUID, appGID := x.Application()
	proxyUID, proxyGID, proxyMark := x.Proxy()
	appPort := x.ApplicationPort()

	var fates []Fate
	podAddrs := x.Subject.Addrs
	if !slices.Contains(podAddrs, e.Pod) { // the pod's address of this family is unknown
		podAddrs = append(slices.Clone(podAddrs), e.Pod)
	}
	add := func(what string, p trace.Packet) {
		p.PodAddrs = podAddrs
		fate := Fate{What: what, Packet: p}
		if result, err := trace.Trace(x.Plan.Ruleset, p); err != nil {
			fate.Error = err.Error()
		} else {
			fate.Result = &result
		}
		fates = append(fates, fate)
	}
	out := func(what string, proto ruleset.Proto, dst netip.Addr, port uint16) {
		add(what, trace.Packet{Direction: trace.Out, Proto: proto, UID: appUID, GID: appGID, Dst: netip.AddrPortFrom(dst, port)})
	}
	proxy := func(what string, proto ruleset.Proto, dst netip.Addr, port uint16) {
		add(what, trace.Packet{
			Direction: trace.Out, Proto: proto, UID: proxyUID, GID: proxyGID, Mark: proxyMark, Dst: netip.AddrPortFrom(dst, port),
		})
	}
	in := func(what string, proto ruleset.Proto, port uint16) {
		add(what, trace.Packet{Direction: trace.In, Proto: proto, Src: netip.AddrPortFrom(e.Client, 0), Dst: netip.AddrPortFrom(e.Pod, port)})
	}

	out("application to a service", ruleset.TCP, e.Service, 80)
	if x.Plan.Ruleset.Family(f) == nil {
		in("client to the application", ruleset.TCP, appPort)
		return fates // without rules, everything passes
	}
	out("application to the outside", ruleset.TCP, e.Outside, 443)
	out("application to its own pod", ruleset.TCP, e.Pod, appPort)
	out("application to localhost", ruleset.TCP, e.Loopback, appPort)
	out("application's look-up", ruleset.UDP, e.Resolver, 53)
	out("application, other UDP", ruleset.UDP, e.Outside, 8125)
	for _, excluded := range r.Outbound.ExcludeCIDRs.Family(f) {
		out("application to an excluded range", ruleset.TCP, excluded.Addr(), 443)
	}
	if ports := r.Outbound.ExcludePorts.Ranges(); len(ports) > 0 {
		out("application to an excluded port", ruleset.TCP, e.Service, ports[0].First)
	}
	proxy("proxy to the outside", ruleset.TCP, e.Outside, 443)
	proxy("proxy to a service of its own pod", ruleset.TCP, e.Pod, appPort)
	proxy("proxy's look-up", ruleset.UDP, e.Resolver, 53)
	in("client to the application", ruleset.TCP, appPort)
	if r.Proxy.TunnelPort != 0 {
		in("client to the proxy's tunnel", ruleset.TCP, r.Proxy.TunnelPort)
	}
	for _, excluded := range r.Inbound.ExcludePorts.Ranges() {
		in("client to an excluded port", ruleset.TCP, excluded.First)
	}
	in("client by UDP", ruleset.UDP, appPort)
	return fates
}

// app returns the pod's first container that is not the proxy; nil if there is none.
func (x Explanation) app() *corev1.Container {
	for i := range x.Subject.Pod.Spec.Containers {
		if c := &x.Subject.Pod.Spec.Containers[i]; c.Name != x.proxy {
			return c
		}
	}
	return nil
}

// Application returns the user and group that the application's manifest asks for, and 1000 where the image decides.
func (x Explanation) Application() (uid, gid uint32) {
	uid, gid = 1000, 1000
	set := func(to *uint32, id *int64) {
		if id != nil && *id >= 0 && *id < int64(redirect.NoID) {
			*to = uint32(*id)
		}
	}
	if sc := x.Subject.Pod.Spec.SecurityContext; sc != nil {
		set(&uid, sc.RunAsUser)
		set(&gid, sc.RunAsGroup)
	}
	if app := x.app(); app != nil && app.SecurityContext != nil {
		set(&uid, app.SecurityContext.RunAsUser)
		set(&gid, app.SecurityContext.RunAsGroup)
	}
	return uid, gid
}

// Proxy returns the user, group and mark that the rules know the proxy by: the application's where they name none.
func (x Explanation) Proxy() (uid, gid, mark uint32) {
	uid, gid = x.Application()
	p := x.Plan.Redirect.Proxy
	if len(p.UIDs) > 0 {
		uid = p.UIDs[0]
	}
	if len(p.GIDs) > 0 {
		gid = p.GIDs[0]
	}
	return uid, gid, p.Mark.Value
}

// ApplicationPort returns the first port that the application declares, and 8080 if it declares none.
func (x Explanation) ApplicationPort() uint16 {
	if app := x.app(); app != nil {
		for _, p := range app.Ports {
			if p.ContainerPort > 0 && p.ContainerPort < 1<<16 {
				return uint16(p.ContainerPort)
			}
		}
	}
	return 8080
}

// line describes the packet in the table of packets.
func (f Fate) line() string {
	p := f.Packet
	s := fmt.Sprintf("%s %s to %s", p.Direction, p.Proto, p.Dst)
	if p.Direction == trace.Out {
		s += fmt.Sprintf(" as %d/%d", p.UID, p.GID)
	}
	if p.Mark != 0 {
		s += fmt.Sprintf(" mark %#x", p.Mark)
	}
	return s
}
