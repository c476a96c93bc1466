// Package kuma is the dialect of Kuma: pods with a kuma-sidecar container that
// Kuma's injector has added, configured by an annotation that holds YAML.
//
// It follows Kuma's documentation (kuma.io/docs, "Transparent proxying") and the rules of its CNI plugin. Where there
// is YAML, it alone counts, since the injector has merged users' annotations into it; an annotation that contradicts it
// is a warning. Without YAML, as with Kuma 2.x, the other annotations configure the pod. A pod whose YAML has dryRun is
// left alone. The dialect differs from the plugin where the plugin falls short of the documentation:
//
//   - With captureAll off, DNS queries to the servers of the pod's dnsConfig are captured if that lists all of them
//     (dnsPolicy None), else to any server. The plugin reads the node's resolv.conf, which is not the pod's.
//   - User ids may exceed 65535; the plugin reads them as 16 bits.
//   - IPv6 is captured, or applying fails; the plugin leaves it open when it cannot set it up.
//   - A virtual network of every interface, "+", is refused.
//   - An empty list of exclusions by user exempts nobody; with the plugin it exempts everybody.
//
// DNS queries over TCP pass, as in Kuma (kuma#15401), unless
// insertRedirectInsteadOfAppend puts the redirection before that rule.
//
// # Families
//
// Both are captured, unless the family mode is ipv4. IPv6 connections then bypass
// the mesh; [dialect.Options] can close that.
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
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// The annotations that Kuma's injector writes.
const (
	SidecarInjected = "kuma.io/sidecar-injected"
	Config          = "traffic.kuma.io/transparent-proxy-config"
)

// The annotations that the injector of Kuma 2.x writes, which count without [Config].
const (
	sidecarUID           = "kuma.io/sidecar-uid"
	proxyOutboundPort    = "kuma.io/transparent-proxying-outbound-port"
	proxyInboundPort     = "kuma.io/transparent-proxying-inbound-port"
	proxyInboundPortIPv6 = "kuma.io/transparent-proxying-inbound-v6-port"
	builtinDNS           = "kuma.io/builtin-dns"
	builtinDNSPort       = "kuma.io/builtin-dns-port"
	builtinDNSBefore2    = "kuma.io/builtindns"
	probeProxyPort       = "kuma.io/application-probe-proxy-port"
	virtualProbes        = "kuma.io/virtual-probes"
	virtualProbesPort    = "kuma.io/virtual-probes-port"
)

// The annotations that users write.
const (
	excludeInboundPorts         = "traffic.kuma.io/exclude-inbound-ports"
	excludeOutboundPorts        = "traffic.kuma.io/exclude-outbound-ports"
	excludeOutboundPortsForUIDs = "traffic.kuma.io/exclude-outbound-ports-for-uids"
	// These are read in its place up to Kuma 2.8.
	excludeTCPPortsForUIDs = "traffic.kuma.io/exclude-outbound-tcp-ports-for-uids"
	excludeUDPPortsForUIDs = "traffic.kuma.io/exclude-outbound-udp-ports-for-uids"

	excludeInboundIPs  = "traffic.kuma.io/exclude-inbound-ips"
	excludeOutboundIPs = "traffic.kuma.io/exclude-outbound-ips"
	dropInvalidPackets = "traffic.kuma.io/drop-invalid-packets"
	iptablesLogs       = "traffic.kuma.io/iptables-logs"
	ipFamilyMode       = "kuma.io/transparent-proxying-ip-family-mode"
	gateway            = "kuma.io/gateway"
)

// The annotations that Kuma has retired, and that are not read; see [dialect.Dialect].Retired.
const (
	builtinDNSPortBefore2 = "kuma.io/builtindnsport"                           // up to 1.8
	experimentalEngine    = "kuma.io/transparent-proxying-experimental-engine" // up to 2.0
)

// known are all of these annotations.
var known = []string{
	SidecarInjected, Config, sidecarUID, proxyOutboundPort, proxyInboundPort, proxyInboundPortIPv6, builtinDNS, builtinDNSPort,
	builtinDNSBefore2, probeProxyPort, virtualProbes, virtualProbesPort, excludeInboundPorts, excludeOutboundPorts,
	excludeOutboundPortsForUIDs, excludeTCPPortsForUIDs, excludeUDPPortsForUIDs, builtinDNSPortBefore2, experimentalEngine, excludeInboundIPs, excludeOutboundIPs, dropInvalidPackets, iptablesLogs, ipFamilyMode, gateway,
}

// Defaults of Kuma.
const (
	outboundPort = 15001
	inboundPort  = 15006
	dnsPort      = 15053
	proxyUID     = 5678
	logLevel     = 7 // debug
	// probePort is the port of virtual probes in Kuma 2.x.
	probePort = 9000
	// oldInboundPortIPv6 was the default before Kuma 2.5, which added the family
	// mode. Plugins since then read it as "the inbound port".
	oldInboundPortIPv6 = 15010
)

// DefaultRedirect is the Redirect of a pod without settings.
func DefaultRedirect() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{
		UIDs:         []uint32{proxyUID},
		OutboundPort: outboundPort,
		InboundPort:  inboundPort,
		PassSources:  passSources(),
	}
	r.Names.ChainPrefix = "KUMA_MESH_"
	r.Names.LoopbackIPv6 = r.Proxy.PassSources[1]
	return r
}

// passSources are the addresses from which the proxy speaks to the application.
func passSources() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 6}), netip.AddrFrom16([16]byte{15: 6})}
}

// New returns the dialect. Pods of the excluded namespaces are left alone.
func New(excludedNamespaces ...string) dialect.Dialect {
	docs := &documents{}
	return dialect.Dialect{
		Name:    "kuma",
		Domains: []string{"kuma.io"},
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"kuma-init"},
			ProxyContainers:    []string{"kuma-sidecar"},
			Required:           []selection.Requirement{{Keys: []string{SidecarInjected}, Values: []string{"true"}}},
			Decline:            docs.decline,
		},
		Build: docs.build,
		Retired: []dialect.Retired{
			{Key: builtinDNSPortBefore2, Now: "annotation " + builtinDNSPort},
			{Key: experimentalEngine, Now: "nothing: there is one engine"},
		},
		Names:    DefaultRedirect().Names,
		Injected: injected,
		Check: dialect.Check{
			Container:  "kuma-validation",
			ExitCode:   1,
			ProbeAddrs: passSources(),
			Outbound:   outboundPort,
			Inbound:    inboundPort,
		},
	}
}

// injected leaves a pod as Kuma's injector does. The configuration that it writes is the default where the pod has no settings; of one that has
// some the annotations say the same.
func injected(pod *corev1.Pod) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if !slices.ContainsFunc(known, func(key string) bool { return pod.Annotations[key] != "" }) {
		pod.Annotations[Config] = "{}"
	}
	pod.Annotations[SidecarInjected] = "true"
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "kuma-sidecar"})
}

func (d *documents) build(in dialect.Input) (dialect.Reading, error) {
	p := newParser(in.Pod)
	p.Misspelt(in.Pod.Annotations, known)
	if value, ok := configured(in.Pod.Annotations); ok {
		p.yaml(d.read(value))
		p.beside()
	} else {
		p.Warn(warning.Fallback, Config, "annotation %s is absent: the pod is configured by its other annotations", Config)
		if runs := in.Values().RunAsUser; runs != nil && *runs > 0 && *runs < int64(redirect.NoID) {
			p.r.Proxy.UIDs = []uint32{uint32(*runs)} //nolint:gosec // in range
			p.Note(redirect.Origin{Field: "proxy.uids", Source: redirect.FromSecurityContext, Key: "runAsUser", Value: strconv.FormatInt(*runs, 10)})
		}
		p.before()
	}
	p.compose()
	p.Default("inbound.ports", "inbound.excludePorts", "inbound.excludeSources", "outbound.cidrs", "outbound.exclude",
		"dns.servers", "virtualNetworks", "ipv6", "dropInvalid", "log", "proxy.uids", "proxy.inboundPort", "proxy.outboundPort")
	return p.Reading(p.r)
}

// configured returns the YAML, and whether the pod has any.
func configured(annotations map[string]string) (string, bool) {
	value := annotations[Config]
	return value, strings.TrimSpace(value) != ""
}

// decline leaves a pod alone whose YAML asks for a dry run. YAML that cannot be read does not: Build refuses the pod.
func (d *documents) decline(pod *corev1.Pod, _ *corev1.Container) (status.Code, string) {
	value, ok := configured(pod.Annotations)
	// Reading YAML costs more than the rest of the decision, and hardly any pod
	// asks for a dry run. Only escapes and tags can spell the key differently.
	if !ok || !strings.ContainsAny(value, `\!`) && !strings.Contains(strings.ToLower(value), "dryrun") {
		return "", ""
	}
	if doc := d.read(value); doc.err != nil || !doc.has(dryRun) {
		return "", ""
	}
	return status.CodeDryRun, Config + ".dryRun is true: no rules are to be applied"
}

// compose completes the Redirect, in the order of Kuma's rules.
func (p *parser) compose() {
	r := &p.r
	if !p.inbound {
		r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()}
	}
	r.Outbound.Exclude = append(p.excludeUsers, p.excludeAddresses()...)
	switch {
	case !p.outbound:
		// DNS queries within the pod are still captured, which LoopbackPass would prevent.
		r.Outbound.CIDRs = redirect.NoPrefixes()
		r.Loopback = redirect.LoopbackCapture
	case !p.includeOutbound.Empty():
		r.Outbound.CIDRs, r.Outbound.Ports = redirect.NoPrefixes(), p.includeOutbound
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
		p.Warn(warning.Fallback, "", "the pod's resolv.conf cannot be seen from the host: look-ups to any server are captured")
	}
}

// resolvers returns the pod's DNS servers, if it lists all of them.
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
