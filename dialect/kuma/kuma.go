// Package kuma is the dialect of Kuma: pods whose kuma-sidecar container
// Kuma's injector has added, configured by one annotation with the whole
// configuration as YAML.
//
// It follows Kuma's documentation (kuma.io/docs, "Transparent proxying") and
// the rules of its CNI plugin. Where the YAML is there, it alone counts: the
// injector has merged users' annotations into it, and then added ports of its
// own. An annotation beside it that says something else is a warning. A pod
// without YAML, as of Kuma 2.x, is configured by its other annotations. A pod
// whose YAML says dryRun is left alone, as Kuma does. The dialect differs from
// the plugin where that falls short of the documentation:
//
//   - Look-ups to resolvers other than the node's are captured too. With
//     captureAll off the plugin reads the servers from the node's resolv.conf,
//     which is not the pod's; here they are those of the pod's dnsConfig where
//     it says all of them (dnsPolicy None), else any.
//   - User ids above 65535 are ids; the plugin reads them as 16 bits.
//   - IPv6 that the plugin cannot set up is no reason to leave it open: it is
//     captured, or applying fails.
//   - Names of virtual networks' interfaces are whole: "br+" is refused.
//   - An empty list of exclusions by user exempts nobody; with the plugin it
//     exempts everybody.
//
// Look-ups over TCP pass, as in Kuma (kuma#15401), unless
// insertRedirectInsteadOfAppend puts the redirection before that rule.
//
// # Families
//
// Both, unless the mode of families is ipv4. IPv6 connections of a pod that has
// both then bypass the mesh; to close that, set Redirect.IPv6 to
// [redirect.FamilyDrop] before rendering.
package kuma

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// The annotations that Kuma's injector writes.
const (
	SidecarInjected = "kuma.io/sidecar-injected"
	Config          = "traffic.kuma.io/transparent-proxy-config"
)

// The annotations that count where [Config] is absent: those that the injector
// of Kuma 2.x writes.
const (
	SidecarUID           = "kuma.io/sidecar-uid"
	ProxyOutboundPort    = "kuma.io/transparent-proxying-outbound-port"
	ProxyInboundPort     = "kuma.io/transparent-proxying-inbound-port"
	ProxyInboundPortIPv6 = "kuma.io/transparent-proxying-inbound-v6-port"
	BuiltinDNS           = "kuma.io/builtin-dns"
	BuiltinDNSPort       = "kuma.io/builtin-dns-port"
	BuiltinDNSBefore2    = "kuma.io/builtindns"
	ProbeProxyPort       = "kuma.io/application-probe-proxy-port"
	VirtualProbes        = "kuma.io/virtual-probes"
	VirtualProbesPort    = "kuma.io/virtual-probes-port"
)

// And those that users write.
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
	// ProbePort is that of virtual probes in Kuma 2.x.
	ProbePort = 9000
	// oldInboundPortIPv6 was the default before families had a mode (Kuma 2.5).
	// The plugins since then read it as "the inbound port".
	oldInboundPortIPv6 = 15010
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
	docs := &documents{}
	return dialect.Dialect{
		Name: "kuma",
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"kuma-init"},
			ProxyContainers:    []string{"kuma-sidecar"},
			Required:           []selection.Requirement{{Keys: []string{SidecarInjected}, Values: []string{"true"}}},
			DryRun:             docs.dryRun,
		},
		Build: docs.build,
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

func (d *documents) build(in dialect.Input) (dialect.Result, error) {
	p := newParser(in.Pod)
	if value, ok := configured(in.Pod.Annotations); ok {
		p.yaml(d.read(value))
		p.beside()
		p.runsAs(in.Values().RunAsUser)
	} else {
		p.Warn("annotation %s is absent: the pod is configured by its other annotations", Config)
		if runs := in.Values().RunAsUser; runs != nil && *runs > 0 && *runs < redirect.NoID {
			p.r.Proxy.UIDs = []uint32{uint32(*runs)} //nolint:gosec // in range
			p.Note(redirect.Origin{Field: "proxy.uids", Source: redirect.FromSecurityContext, Key: "runAsUser", Value: strconv.FormatInt(*runs, 10)})
		}
		p.before()
	}
	p.compose()
	p.Default("inbound.ports", "inbound.excludePorts", "inbound.excludeSources", "outbound.cidrs", "outbound.exclude",
		"dns.servers", "virtualNetworks", "ipv6", "dropInvalid", "log", "proxy.uids", "proxy.inboundPort", "proxy.outboundPort")
	return p.Result(p.r)
}

// configured returns the YAML, if the pod has any. A blank one is none.
func configured(annotations map[string]string) (string, bool) {
	value := annotations[Config]
	return value, strings.TrimSpace(value) != ""
}

// dryRun reports whether the YAML asks for a trial run. One that cannot be read
// does not: building the pod will refuse it.
func (d *documents) dryRun(annotations map[string]string) (string, bool) {
	value, ok := configured(annotations)
	// To read the YAML costs more than all else that is decided of a pod, and
	// hardly any pod says this. A key can be spelled in other ways only with
	// escapes and tags.
	if !ok || !strings.ContainsAny(value, `\!`) && !strings.Contains(strings.ToLower(value), "dryrun") {
		return "", false
	}
	r := d.read(value)
	return Config + ".dryRun is true: no rules are to be applied", r.err == nil && r.document.DryRun
}

// runsAs warns of a proxy that the rules do not know, since its own traffic
// then comes back to it.
func (p *parser) runsAs(user *int64) {
	if user != nil && !slices.ContainsFunc(p.r.Proxy.UIDs, func(id uint32) bool { return int64(id) == *user }) {
		p.Warn("the proxy runs as user %d, and by annotation %s it is known by user %d: its own traffic is redirected to itself",
			*user, Config, p.r.Proxy.UIDs[0])
	}
}

// compose makes the Redirect of what the YAML or the annotations say, in the
// order of Kuma's rules.
func (p *parser) compose() {
	r := &p.r
	if !p.inbound {
		r.Inbound = redirect.Inbound{}
	}
	r.Outbound.Exclude = append(p.excludeUsers, p.excludeAddresses()...)
	switch {
	case !p.outbound:
		// Nothing is outbound any more, but look-ups within the pod are captured
		// as all others, which LoopbackPass would prevent.
		r.Outbound.CIDRs = redirect.PrefixSet{}
		r.Loopback = redirect.LoopbackCapture
	case !p.includeOutbound.Empty():
		r.Outbound.CIDRs, r.Outbound.Ports = redirect.PrefixSet{}, p.includeOutbound
	case !p.excludeOutbound.Empty():
		r.Outbound.Exclude = append(r.Outbound.Exclude, redirect.Exclusion{
			Protocol: redirect.TCP, Ports: p.excludeOutbound, CIDRs: redirect.AllPrefixes(),
		})
	}
	p.composeDNS()
	if p.log {
		r.Log = redirect.Log{Enabled: true, Level: p.logLevel}
	}
}

func (p *parser) composeDNS() {
	if !p.dnsEnabled {
		return
	}
	p.r.DNS = p.dns
	if p.dnsAll {
		return
	}
	if servers, ok := p.resolvers(); ok {
		p.r.DNS.Servers = servers
	} else {
		p.Warn("the pod's resolv.conf cannot be seen from the host: look-ups to any server are captured")
	}
}

// resolvers are the pod's, where it says all of them.
func (p *parser) resolvers() (redirect.PrefixSet, bool) {
	if p.pod.Spec.DNSPolicy != corev1.DNSNone || p.pod.Spec.DNSConfig == nil {
		return redirect.PrefixSet{}, false
	}
	servers, err := parseIPs(p.pod.Spec.DNSConfig.Nameservers)
	return servers, err == nil && !servers.Empty()
}

func (p *parser) excludeAddresses() []redirect.Exclusion {
	if p.excludeOutboundIPs.Empty() {
		return nil
	}
	return []redirect.Exclusion{{Ports: redirect.AllPorts(), CIDRs: p.excludeOutboundIPs}}
}
