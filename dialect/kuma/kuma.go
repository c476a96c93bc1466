// Package kuma is the dialect of Kuma: pods whose kuma-sidecar container
// Kuma's injector has added, configured by one annotation with the whole
// configuration as YAML and by the annotations that users write.
//
// It follows Kuma's documentation (kuma.io/docs, "Transparent proxying") and
// the rules of its CNI plugin. The YAML comes first and users' annotations win
// over it, as they do when the injector makes it; a pod that has annotations
// only, as before Kuma 2.9, is configured by these. It differs from the plugin
// where that falls short of the documentation:
//
//   - Look-ups to resolvers other than the node's are captured too. With
//     captureAll off the plugin reads the servers from the node's resolv.conf,
//     which is not the pod's; here they are those of the pod's dnsConfig where
//     it says all of them (dnsPolicy None), else any.
//   - User ids above 65535 are ids; the plugin reads them as 16 bits.
//   - IPv6 that the plugin cannot set up is no reason to leave it open: it is
//     captured, or applying fails.
//   - Names of virtual networks' interfaces are whole: "br+" is refused.
//
// Look-ups over TCP pass, as in Kuma (kuma#15401).
//
// # Families
//
// Both, unless the mode of families is ipv4. IPv6 connections of a pod that has
// both then bypass the mesh; to close that, set Redirect.IPv6 to
// [redirect.FamilyDrop] before rendering.
package kuma

import (
	"net/netip"
	"strconv"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// The annotations that Kuma's injector writes.
const (
	SidecarInjected = "kuma.io/sidecar-injected"
	Config          = "traffic.kuma.io/transparent-proxy-config"
	SidecarUID      = "kuma.io/sidecar-uid"
	ProbeProxyPort  = "kuma.io/application-probe-proxy-port"
)

// The annotations that users write.
const (
	ExcludeInboundPorts         = "traffic.kuma.io/exclude-inbound-ports"
	ExcludeOutboundPorts        = "traffic.kuma.io/exclude-outbound-ports"
	ExcludeOutboundPortsForUIDs = "traffic.kuma.io/exclude-outbound-ports-for-uids"
	ExcludeInboundIPs           = "traffic.kuma.io/exclude-inbound-ips"
	ExcludeOutboundIPs          = "traffic.kuma.io/exclude-outbound-ips"
	DropInvalidPackets          = "traffic.kuma.io/drop-invalid-packets"
	IptablesLogs                = "traffic.kuma.io/iptables-logs"
	IPFamilyMode                = "kuma.io/transparent-proxying-ip-family-mode"
	Gateway                     = "kuma.io/gateway"
)

// Defaults of Kuma.
const (
	OutboundPort = 15001
	InboundPort  = 15006
	DNSPort      = 15053
	ProxyUID     = 5678
	LogLevel     = 7 // debug
)

// Defaults is the Redirect of a pod that says nothing.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{
		UIDs:         []uint32{ProxyUID},
		OutboundPort: OutboundPort,
		InboundPort:  InboundPort,
		PassSources:  passSources(),
	}
	r.Names.ChainPrefix = "KUMA_MESH_"
	r.Names.LoopbackIPv6 = r.Proxy.PassSources[1]
	return r
}

// passSources are the proxy's addresses towards the application.
func passSources() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 6}), netip.AddrFrom16([16]byte{15: 6})}
}

// New returns the dialect. The namespaces are left alone altogether.
func New(excludedNamespaces ...string) dialect.Dialect {
	return dialect.Dialect{
		Name: "kuma",
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"kuma-init"},
			ProxyContainers:    []string{"kuma-sidecar"},
			Required:           []selection.Requirement{{Keys: []string{SidecarInjected}, Values: []string{"true"}}},
		},
		Build: build,
		Names: Defaults().Names,
		Validation: dialect.Validation{
			Container:  "kuma-validation",
			ExitCode:   1,
			ProbeAddrs: passSources(),
			Outbound:   OutboundPort,
			Inbound:    InboundPort,
		},
	}
}

func build(in dialect.Input) (dialect.Built, error) {
	p := parser{annotations: in.Pod.Annotations, pod: in.Pod, r: Defaults(), inbound: true, outbound: true, logLevel: LogLevel}
	if runs := in.Given().RunAsUser; runs != nil && *runs > 0 && *runs < redirect.NoID {
		p.r.Proxy.UIDs = []uint32{uint32(*runs)} //nolint:gosec // in range
		p.Note(redirect.Origin{Field: "proxy.uids", Source: redirect.FromSecurityContext, Key: "runAsUser", Value: strconv.FormatInt(*runs, 10)})
	}
	p.yaml()
	p.users()
	p.compose()
	p.Default("inbound.ports", "inbound.excludePorts", "inbound.excludeSources", "outbound.cidrs", "outbound.exclude",
		"dns.servers", "virtualNetworks", "ipv6", "dropInvalid", "log", "proxy.uids", "proxy.inboundPort", "proxy.outboundPort")
	return p.Built(p.r)
}

// compose makes the Redirect of what the YAML and the annotations say, in the
// order of Kuma's rules.
func (p *parser) compose() {
	r := &p.r
	if !p.inbound {
		r.Inbound = redirect.Inbound{}
	}
	r.Outbound.Exclude = append(p.excludeUsers, p.excludeAddresses()...)
	switch {
	case !p.outbound:
		r.Outbound.CIDRs = redirect.PrefixSet{}
		r.Loopback = redirect.LoopbackPass
	case !p.includeOutbound.Empty():
		r.Outbound.CIDRs, r.Outbound.Ports = redirect.PrefixSet{}, p.includeOutbound
	case !p.excludeOutbound.Empty():
		r.Outbound.Exclude = append(r.Outbound.Exclude, redirect.Exclusion{
			Protocol: redirect.TCP, Ports: p.excludeOutbound, CIDRs: redirect.AllPrefixes(),
		})
	}
	if p.log {
		r.Log = redirect.Log{Enabled: true, Level: p.logLevel}
	}
}

func (p *parser) excludeAddresses() []redirect.Exclusion {
	if p.excludeOutboundIPs.Empty() {
		return nil
	}
	return []redirect.Exclusion{{Ports: redirect.AllPorts(), CIDRs: p.excludeOutboundIPs}}
}
