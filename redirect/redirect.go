package redirect

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Mode selects the way that inbound connections reach the proxy. The zero value is invalid.
type Mode string

// The interception modes.
const (
	// ModeRedirect rewrites the destination of a connection (iptables REDIRECT). The proxy asks the kernel for the original
	// one (SO_ORIGINAL_DST).
	ModeRedirect Mode = "REDIRECT"
	// ModeTProxy delivers inbound connections to the proxy unchanged (iptables TPROXY), so that the application can see
	// the client's address. Outbound connections are redirected as in ModeRedirect.
	ModeTProxy Mode = "TPROXY"
)

// FamilyMode is the treatment of one address family. The zero value is invalid.
type FamilyMode string

// The family modes.
const (
	// FamilyCapture redirects the family's connections.
	FamilyCapture FamilyMode = "capture"
	// FamilyPass leaves the family alone: its connections bypass the mesh.
	FamilyPass FamilyMode = "pass"
	// FamilyDrop drops the family's TCP, except the proxy's own and loopback
	// traffic, so that nothing bypasses the mesh by it.
	FamilyDrop FamilyMode = "drop"
)

// Redirect selects the connections of a pod that go through its proxy. Start from
// [Default]: the zero value is invalid.
type Redirect struct {
	Mode Mode       `json:"mode"`
	IPv4 FamilyMode `json:"ipv4"`
	IPv6 FamilyMode `json:"ipv6"`

	Proxy    Proxy    `json:"proxy"`
	Inbound  Inbound  `json:"inbound"`
	Outbound Outbound `json:"outbound"`
	DNS      DNS      `json:"dns"`

	// Loopback is the treatment of connections within the pod; the zero value is LoopbackHairpin.
	Loopback Loopback `json:"loopback,omitempty"`
	// Localhost is the part of 127.0.0.0/8 that counts as localhost: connections to it are left alone. The zero value is
	// 127.0.0.1/32, since a mesh may give services other addresses of that range. For IPv6 it is always ::1.
	Localhost netip.Prefix `json:"localhost,omitzero"`
	// FinalPass takes what is excluded, connections within the pod and replies to the proxy out of the nat table at once
	// (ACCEPT), so that others' rules after ours in the same chain cannot redirect them. By default those rules see them
	// (RETURN). What the proxy sends to other hosts, and what is for localhost, is always left to them.
	FinalPass bool `json:"finalPass,omitempty"`

	// IncludeInterfaces, if not empty, are the only interfaces whose traffic is redirected, beside lo, VirtualInterfaces and VirtualNetworks;
	// at most 64. ExcludeInterfaces win over them.
	IncludeInterfaces []string `json:"includeInterfaces,omitempty"`
	// ExcludeInterfaces are left alone in both directions.
	ExcludeInterfaces []string `json:"excludeInterfaces,omitempty"`
	// VirtualInterfaces lead to virtual machines or nested containers. Traffic that
	// they bring in counts as the pod's outbound traffic.
	VirtualInterfaces []string `json:"virtualInterfaces,omitempty"`
	// VirtualNetworks are the same, with a network behind the interface that is
	// reached directly; at most one per interface and family.
	VirtualNetworks []VirtualNetwork `json:"virtualNetworks,omitempty"`
	// DropInvalid drops packets in conntrack state INVALID. Their address is not
	// rewritten, so they would make the application reset a healthy connection.
	DropInvalid bool `json:"dropInvalid,omitempty"`
	// Log makes the kernel log each connection that meets the rules. In a pod it
	// does so only if net.netfilter.nf_log_all_netns is 1.
	Log Log `json:"log,omitzero"`

	// Own are chains of the mesh's own, for what no field says. Each has the ChainPrefix, and after it the point that it stands at: a hook and
	// "_FIRST" before the Redirect's rules there, a hook and "_LAST" after them for what they leave alone, or the hook alone instead of them; in
	// table nat, "MESH_OUTPUT_FIRST". The hooks are those that the table has: raw PREROUTING and OUTPUT, nat these with INPUT and
	// POSTROUTING, mangle all five. FORWARD is what the pod passes on for others. Other chains are those that such
	// chains jump to; in table nat also the Redirect's, "MESH_REDIRECT" and "MESH_IN_REDIRECT", which redirect to the proxy's ports.
	//
	// A rule with an address is for its family, any other for both; they hold in families that are captured. At most 64 chains and 1,000 rules
	// are allowed. Whatever shows, traces, applies, compares and checks rules does so with these.
	Own []ruleset.Chain `json:"own,omitempty"`

	// Names are the rules' identifiers in the kernel.
	Names Names `json:"names"`
}

// Proxy holds the proxy's ports, and the marks and owners of its own traffic.
type Proxy struct {
	// UIDs and GIDs own the proxy's sockets, whose traffic is not redirected. At
	// least one is required, unless there is a Mark.
	UIDs []uint32 `json:"uids"`
	GIDs []uint32 `json:"gids,omitempty"`
	// Mark is on each packet of the proxy (SO_MARK) and replaces UIDs and GIDs, for a proxy that
	// listens in the pod's namespace but is not a process of the pod. It speaks to the application
	// from the client's address, so the application's replies are routed back to it by
	// Names.InboundMark and Names.RouteTable. ModeRedirect only. The zero value is no mark.
	Mark Mark `json:"mark,omitzero"`
	// OutboundPort and InboundPort receive redirected connections. InboundPort is 0 if Inbound.Ports is none and the proxy has none: what
	// it sends to its own pod then passes.
	OutboundPort uint16 `json:"outboundPort"`
	InboundPort  uint16 `json:"inboundPort"`
	// TunnelPort is the proxy's listener for the mesh's tunnel, which is never redirected inbound. 0 is no tunnel.
	TunnelPort uint16 `json:"tunnelPort,omitempty"`
	// PassSources are the addresses from which the proxy speaks to the application
	// over the loopback interface, at most one per family.
	PassSources []netip.Addr `json:"passSources,omitempty"`
}

// Inbound selects the connections to the pod that are redirected.
type Inbound struct {
	// Ports are redirected: all, these or none. Required, so that none is said.
	Ports PortSet `json:"ports"`
	// ExcludePorts are left alone. They count only if Ports is all.
	ExcludePorts PortSet `json:"excludePorts"`
	// ExcludeSources are clients that reach the application directly, on any port. All is not allowed.
	ExcludeSources PrefixSet `json:"excludeSources,omitzero"`
	// ProbeSources reach the application directly on ProbePorts, and on no other port. All sources are not allowed.
	ProbeSources PrefixSet `json:"probeSources,omitzero"`
	ProbePorts   PortSet   `json:"probePorts,omitzero"`
}

// Outbound selects the TCP connections from the pod that are redirected: those to CIDRs or to Ports, unless excluded.
type Outbound struct {
	// CIDRs are the destinations that are redirected: all, these or none. Required, so that none is said.
	CIDRs PrefixSet `json:"cidrs"`
	// ExcludeCIDRs win over CIDRs and Ports. All is not allowed.
	ExcludeCIDRs PrefixSet `json:"excludeCIDRs"`
	// Ports are redirected whatever the destination. The zero value is none.
	Ports PortSet `json:"ports"`
	// ExcludePorts win over all else, for TCP and UDP.
	ExcludePorts PortSet `json:"excludePorts"`
	// DropUDPPorts are destinations of UDP that is dropped, so that HTTP/3 falls back to TCP: all, these or none. The zero value is none.
	// What is excluded passes, and so do the proxy's own packets, those within the pod, answers, and captured DNS queries. PassUDPPorts
	// pass too.
	DropUDPPorts PortSet `json:"dropUDPPorts,omitzero"`
	PassUDPPorts PortSet `json:"passUDPPorts,omitzero"`
	// Exclude lists more traffic that is left alone.
	Exclude []Exclusion `json:"exclude,omitempty"`
	// OwnerGroups, if not empty, are the only groups (numeric ids) whose traffic is redirected.
	// ExcludeOwnerGroups are groups whose traffic is not. Only one of the two may be set.
	OwnerGroups        []uint32 `json:"ownerGroups,omitempty"`
	ExcludeOwnerGroups []uint32 `json:"excludeOwnerGroups,omitempty"`
}

// DNS selects the DNS queries that are redirected.
type DNS struct {
	// Servers are the resolvers whose traffic on port 53, UDP and TCP, is
	// redirected: all, these or none. The zero value captures nothing.
	Servers PrefixSet `json:"servers"`
	// Port is the proxy's DNS listener. Either Port or To is required unless Servers is none.
	Port uint16 `json:"port,omitempty"`
	// To are resolvers that get the queries instead of Port, at most one per
	// family; port 0 keeps the query's port. A family without one is not captured.
	To []netip.AddrPort `json:"to,omitempty"`
	// UDPOnly lets DNS queries over TCP pass.
	UDPOnly bool `json:"udpOnly,omitempty"`
	// TCPOutbound treats DNS queries over TCP as any other outbound connection,
	// instead of letting them pass. It needs UDPOnly.
	TCPOutbound bool `json:"tcpOutbound,omitempty"`
	// OneZone uses no conntrack zones for DNS queries, for kernels without them; see [Names].
	OneZone bool `json:"oneZone,omitempty"`
	// Everyone captures the proxy's own DNS queries too, before any exclusion. It is
	// only for a resolver that sends no queries from within the pod.
	Everyone bool `json:"everyone,omitempty"`
}

// Enabled reports whether any DNS query is captured.
func (d DNS) Enabled() bool { return !d.Servers.Empty() }

// Names are the identifiers of a mesh's rules in the kernel. They must differ from
// those of anything else in the pod's network namespace.
type Names struct {
	// ChainPrefix begins the name of each chain, in upper case: "MESH_".
	ChainPrefix string `json:"chainPrefix"`
	// InboundMark marks packets on their way to the transparent listener (TPROXY), or the application's replies to a proxy
	// that is known by its mark. HairpinMark marks what the proxy sends to its own pod; TPROXY only.
	InboundMark uint32 `json:"inboundMark"`
	HairpinMark uint32 `json:"hairpinMark"`
	// RouteTable holds the route that keeps packets with the InboundMark on this host. It is used where that is.
	RouteTable uint32 `json:"routeTable"`
	// AppZone is the conntrack zone of the application's redirected DNS queries. The proxy may use the same source port
	// for the same server, and in one zone one would get the other's answer. ProxyZone is that in which the mesh's own
	// programs put the proxy's: rules with it are known for the mesh's, and none of ours has it. DNS only.
	ProxyZone uint16 `json:"proxyZone"`
	AppZone   uint16 `json:"appZone"`
	// MarkMask selects the bits of InboundMark that count if the proxy is known by its mark; 0 is
	// all bits. RoutePriority is the priority of the routing rule; 0 leaves it to the kernel.
	MarkMask      uint32 `json:"markMask,omitempty"`
	RoutePriority uint32 `json:"routePriority,omitempty"`
	// LoopbackIPv6 is added to lo if IPv6 is captured, for the proxy to speak to the application from; see
	// Proxy.PassSources. IPv4 needs no such address, since all of 127.0.0.0/8 is on lo. The zero value is none.
	LoopbackIPv6 netip.Addr `json:"loopbackIPv6,omitzero"`
	// OtherChains and OtherTables are what another program of the mesh uses for the same rules; see [ruleset.Ownership].
	OtherChains []string `json:"otherChains,omitempty"`
	OtherTables []string `json:"otherTables,omitempty"`
}

// Owner returns the owner of the rules with these names.
func (n Names) Owner() ruleset.Ownership {
	o := ruleset.Ownership{
		Prefix:  n.ChainPrefix,
		Marks:   []uint32{n.InboundMark, n.HairpinMark},
		Zones:   []uint16{n.ProxyZone, n.AppZone},
		Routing: ruleset.Routing{Mark: n.InboundMark, Mask: n.MarkMask, Table: n.RouteTable, Priority: n.RoutePriority},

		OtherChains: n.OtherChains, OtherTables: n.OtherTables,
	}
	if n.LoopbackIPv6.IsValid() {
		o.LoopbackAddrs = []netip.Addr{n.LoopbackIPv6}
	}
	return o
}

// Default redirects all inbound and outbound TCP of both families to a proxy that runs as user 1337
// and listens on 15001 (outbound) and 15006 (inbound). Chains are named MESH_*.
//
// The proxy is known by that user alone: no group, mark or address passes that the caller has not set. Setting Proxy.UIDs
// replaces the user. Setting Proxy.GIDs adds to it; a proxy that is known by its group alone has Proxy.UIDs nil.
func Default() Redirect {
	return Redirect{
		Mode: ModeRedirect,
		IPv4: FamilyCapture,
		IPv6: FamilyCapture,
		Proxy: Proxy{
			UIDs:         []uint32{1337},
			OutboundPort: 15001,
			InboundPort:  15006,
		},
		Inbound:  Inbound{Ports: AllPorts()},
		Outbound: Outbound{CIDRs: AllPrefixes()},
		Names: Names{
			ChainPrefix: "MESH_",
			InboundMark: 1337,
			HairpinMark: 1338,
			RouteTable:  133,
			ProxyZone:   1,
			AppZone:     2,
		},
	}
}

// MarshalJSON writes the fields that may be unset as none, where that is the same.
func (r Redirect) MarshalJSON() ([]byte, error) {
	type plain Redirect
	for _, s := range []*PortSet{&r.Inbound.ExcludePorts, &r.Outbound.Ports, &r.Outbound.ExcludePorts} {
		if s.IsZero() {
			*s = NoPorts()
		}
	}
	for _, s := range []*PrefixSet{&r.Outbound.ExcludeCIDRs, &r.DNS.Servers} {
		if s.IsZero() {
			*s = NoPrefixes()
		}
	}
	return json.Marshal(plain(r))
}

// Clone returns a copy that shares nothing with r.
func (r Redirect) Clone() Redirect {
	for _, ids := range []*[]uint32{&r.Proxy.UIDs, &r.Proxy.GIDs, &r.Outbound.OwnerGroups, &r.Outbound.ExcludeOwnerGroups} {
		*ids = slices.Clone(*ids)
	}
	for _, names := range []*[]string{&r.IncludeInterfaces, &r.ExcludeInterfaces, &r.VirtualInterfaces, &r.Names.OtherChains, &r.Names.OtherTables} {
		*names = slices.Clone(*names)
	}
	r.Proxy.PassSources = slices.Clone(r.Proxy.PassSources)
	r.VirtualNetworks = slices.Clone(r.VirtualNetworks)
	r.DNS.To = slices.Clone(r.DNS.To)
	r.Own = cloneChains(r.Own)
	r.Outbound.Exclude = slices.Clone(r.Outbound.Exclude)
	for i := range r.Outbound.Exclude {
		r.Outbound.Exclude[i].UIDs = slices.Clone(r.Outbound.Exclude[i].UIDs)
	}
	return r
}

// Family returns the mode of a family.
func (r Redirect) Family(f ruleset.Family) FamilyMode {
	if f == ruleset.IPv4 {
		return r.IPv4
	}
	return r.IPv6
}

// String summarizes r in one line.
func (r Redirect) String() string {
	var b strings.Builder
	unlessEmpty := func(words string, set interface{ Empty() bool }) {
		if !set.Empty() {
			fmt.Fprintf(&b, " %s %s", words, set)
		}
	}
	fmt.Fprintf(&b, "%s in %s -> :%d", r.Mode, r.Inbound.Ports, r.Proxy.InboundPort)
	unlessEmpty("except", r.Inbound.ExcludePorts)
	unlessEmpty("except from", r.Inbound.ExcludeSources)
	if !r.Inbound.ProbeSources.Empty() && !r.Inbound.ProbePorts.Empty() {
		fmt.Fprintf(&b, " except from %s on %s", r.Inbound.ProbeSources, r.Inbound.ProbePorts)
	}
	fmt.Fprintf(&b, "; out %s", r.Outbound.CIDRs)
	unlessEmpty("and ports", r.Outbound.Ports)
	fmt.Fprintf(&b, " -> :%d", r.Proxy.OutboundPort)
	unlessEmpty("except", r.Outbound.ExcludeCIDRs)
	unlessEmpty("except ports", r.Outbound.ExcludePorts)
	for _, e := range r.Outbound.Exclude {
		fmt.Fprintf(&b, " except %s", e)
	}
	unlessEmpty("drop udp ports", r.Outbound.DropUDPPorts)
	if len(r.IncludeInterfaces) > 0 {
		fmt.Fprintf(&b, "; interfaces %s", strings.Join(r.IncludeInterfaces, ","))
	}
	if len(r.Own) > 0 {
		fmt.Fprintf(&b, "; %d chains of the mesh's own", len(r.Own))
	}
	switch {
	case r.DNS.Enabled() && len(r.DNS.To) > 0:
		fmt.Fprintf(&b, "; dns %s -> %v", r.DNS.Servers, r.DNS.To)
	case r.DNS.Enabled():
		fmt.Fprintf(&b, "; dns %s -> :%d", r.DNS.Servers, r.DNS.Port)
	}
	if r.Proxy.Mark.IsZero() {
		fmt.Fprintf(&b, "; proxy uid %v gid %v", r.Proxy.UIDs, r.Proxy.GIDs)
	} else {
		fmt.Fprintf(&b, "; proxy mark %s", r.Proxy.Mark)
	}
	fmt.Fprintf(&b, "; ipv4 %s ipv6 %s", r.IPv4, r.IPv6)
	return b.String()
}
