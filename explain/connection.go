package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Connect traces the connection that a packet opens. A packet of a pod outside the mesh meets no rules.
func (x Explanation) Connect(p trace.Packet) (trace.Conversation, error) {
	family := ruleset.FamilyOf(p.Dst.Addr().Unmap())
	p.PodAddrs = x.Subject.Addrs
	e := examples[family]
	if p.Direction == trace.In && !p.Src.Addr().IsValid() && p.Dst.Addr().IsValid() {
		p.Src = netip.AddrPortFrom(e.Client, p.Src.Port())
	} else if p.Direction == trace.Out && !slices.ContainsFunc(x.Subject.Addrs, ofFamily(family)) {
		p.PodAddrs = append(slices.Clone(x.Subject.Addrs), e.Pod)
	}
	c := trace.Connection{First: p, Listeners: x.Listeners(family)}
	if !x.Decision.Selected {
		got, err := trace.TraceConnection(ruleset.Ruleset{}, c)
		got.Reason += " (" + x.reason() + ")"
		return got, err
	}
	return trace.TraceConnection(x.Plan.Ruleset, c)
}

// Trace traces one packet. That of a pod outside the mesh passes, with the decision as its reason.
func (x Explanation) Trace(p trace.Packet) (trace.Result, error) {
	if !x.Decision.Selected {
		return trace.Result{Verdict: trace.Pass, Path: []string{}, Mark: p.Mark, Reason: x.reason()}, nil
	}
	p.PodAddrs = x.Subject.Addrs
	return trace.Trace(x.Plan.Ruleset, p)
}

// reason is that of the decision, with its details.
func (x Explanation) reason() string {
	return fmt.Sprintf("%s: %s", x.Decision.Reason, x.Decision.Detail)
}

// Listeners are the pod's sockets as its redirection has them: the proxy's, and the application's on all other ports.
func (x Explanation) Listeners(f ruleset.Family) []trace.Listener {
	appUID, appGID := x.Application()
	everything := trace.Listener{UID: appUID, GID: appGID}
	r := x.Plan.Redirect
	if !x.Decision.Selected {
		return []trace.Listener{everything}
	}
	proxy := trace.Listener{Mark: r.Proxy.Mark.Value}
	if len(r.Proxy.UIDs) > 0 {
		proxy.UID = r.Proxy.UIDs[0]
	}
	if len(r.Proxy.GIDs) > 0 {
		proxy.GID = r.Proxy.GIDs[0]
	}
	on := func(port uint16, proto ruleset.Proto, onward *trace.Onward) trace.Listener {
		l := proxy
		l.Port, l.Proto, l.Onward = port, proto, onward
		return l
	}
	plainly := &trace.Onward{Mark: r.Proxy.Mark.Value}
	inbound := on(r.Proxy.InboundPort, ruleset.TCP, inboundOnward(r, f))
	inbound.Transparent = true
	list := []trace.Listener{on(r.Proxy.OutboundPort, ruleset.TCP, plainly), inbound, everything}
	if r.Proxy.TunnelPort != 0 {
		list = append(list, on(r.Proxy.TunnelPort, ruleset.TCP, nil))
	}
	if r.DNS.Enabled() {
		for _, to := range r.DNS.To {
			if to.Addr().IsLoopback() && to.Port() != 0 {
				list = append(list, on(to.Port(), ruleset.AnyProto, nil))
			}
		}
		if r.DNS.Port != 0 {
			list = append(list, on(r.DNS.Port, ruleset.AnyProto, plainly))
		}
	}
	return list
}

// inboundOnward is the proxy's connection to the application: a node's proxy from the client's address, a pod's own from
// the address that the rules let through. Nil where they name none, since the mesh's proxy then has its own way.
func inboundOnward(r redirect.Redirect, f ruleset.Family) *trace.Onward {
	if !r.Proxy.Mark.IsZero() {
		return &trace.Onward{AsClient: true, Mark: r.Proxy.Mark.Value}
	}
	for _, a := range r.Proxy.PassSources {
		if ruleset.FamilyOf(a) == f {
			return &trace.Onward{Src: a}
		}
	}
	return nil
}
