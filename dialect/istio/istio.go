// Package istio is the dialect of Istio's sidecars: pods with an istio-proxy
// container, configured by annotations of sidecar.istio.io and
// traffic.sidecar.istio.io and by the proxy's environment.
//
// It follows Istio's own CNI plugin, to whose annotations the rules must do
// justice, but for this:
//
//   - With TPROXY, Istio's plugin captures the tunnel port 15008; here it is let
//     through as in REDIRECT mode.
//   - The interception mode NONE, with which the injector asks for a proxy and
//     no interception, is passed; the plugin fails such pods.
//   - Where a pod has no annotation about the mode, what the proxy's environment
//     and ProxyConfig say of it counts; the plugin takes it for REDIRECT.
//
// # Families
//
// IPv4 is always captured. IPv6 is captured when the pod's first address is
// IPv6 or ISTIO_DUAL_STACK is true; otherwise IPv6 connections bypass the mesh
// wherever the pod's kernel has the protocol. [dialect.Options] can close that.
package istio

import (
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// The annotations, from Istio's annotation reference (istio.io/latest/docs/reference/config/annotations).
const (
	StatusAnnotation = "sidecar.istio.io/status"
	InjectKey        = "sidecar.istio.io/inject"

	InterceptionMode        = "sidecar.istio.io/interceptionMode"
	ProxyConfig             = "proxy.istio.io/config"
	StatusPort              = "status.sidecar.istio.io/port"
	IncludeOutboundIPRanges = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	ExcludeOutboundIPRanges = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	IncludeOutboundPorts    = "traffic.sidecar.istio.io/includeOutboundPorts"
	ExcludeOutboundPorts    = "traffic.sidecar.istio.io/excludeOutboundPorts"
	IncludeInboundPorts     = "traffic.sidecar.istio.io/includeInboundPorts"
	ExcludeInboundPorts     = "traffic.sidecar.istio.io/excludeInboundPorts"
	ExcludeInterfaces       = "traffic.sidecar.istio.io/excludeInterfaces"
	VirtualInterfaces       = "istio.io/reroute-virtual-interfaces"
	KubevirtInterfaces      = "traffic.sidecar.istio.io/kubevirtInterfaces" // deprecated
)

// The variables of the istio-proxy container.
const (
	DNSCapture           = "ISTIO_META_DNS_CAPTURE"
	DualStack            = "ISTIO_DUAL_STACK"
	InvalidDrop          = "INVALID_DROP"
	DisableEnvoy         = "DISABLE_ENVOY"
	MetaInterceptionMode = "ISTIO_META_INTERCEPTION_MODE"
	ProxyConfigEnv       = "PROXY_CONFIG"
)

// Ports of Istio's proxy (istio.io/latest/docs/ops/deployment/application-requirements).
const (
	OutboundPort   = 15001
	ProbePort      = 15002
	InboundPort    = 15006
	TunnelPort     = 15008
	AgentPort      = 15020
	HealthPort     = 15021
	DNSPort        = 15053
	PrometheusPort = 15090
)

// ProxyID is the user and group of the proxy unless its container says
// otherwise.
const ProxyID = 1337

// alwaysExcluded are ports of the proxy itself, which no one redirects.
var alwaysExcluded = redirect.Ports(AgentPort, HealthPort, PrometheusPort)

// passIPv6 is ::6, from which Envoy speaks to the application.
var passIPv6 = netip.AddrFrom16([16]byte{15: 6})

// Defaults is the Redirect of a pod that says nothing, for IPv4.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	r.Proxy = redirect.Proxy{
		UIDs:         []uint32{ProxyID},
		GIDs:         []uint32{ProxyID},
		OutboundPort: OutboundPort,
		InboundPort:  InboundPort,
		TunnelPort:   TunnelPort,
		// Envoy's source address towards the application.
		PassSources: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 6}), passIPv6},
	}
	r.Names.LoopbackIPv6 = passIPv6
	r.Inbound.ExcludePorts = alwaysExcluded
	r.Outbound.ExcludePorts = redirect.Ports(AgentPort)
	r.Names.ChainPrefix = "ISTIO_"
	return r
}

// New returns the dialect. The namespaces are left alone altogether.
func New(excludedNamespaces ...string) dialect.Dialect {
	return dialect.Dialect{
		Name: "istio",
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"istio-init"},
			ProxyContainers:    []string{"istio-proxy"},
			DisableEnv:         DisableEnvoy,
			ProxyCommand:       "proxy",
			ProxyTypes:         []string{"sidecar"},
			InjectKey:          InjectKey,
			StatusAnnotation:   StatusAnnotation,
			NotIntercepted:     notIntercepted,
		},
		Build: build,
		Names: Defaults().Names,
		Validation: dialect.Validation{
			Container: "istio-validation",
			ExitCode:  126,
			ProbePort: ProbePort,
			Outbound:  OutboundPort,
			Inbound:   InboundPort,
		},
	}
}

func build(in dialect.Input) (dialect.Result, error) {
	given := in.Values()
	r, origins, warnings, err := schema.Build(given)
	if _, said := given.Annotations[InterceptionMode]; !said {
		_, unread := interception(given)
		warnings = append(warnings, unread...)
	}
	if err != nil {
		return dialect.Result{Warnings: warnings}, err
	}
	if len(in.Addrs) > 0 && ruleset.FamilyOf(in.Addrs[0]) == ruleset.IPv6 {
		r.IPv6 = redirect.FamilyCapture
	}
	return dialect.Result{Redirect: r, Origins: origins, Warnings: warnings}, nil
}

// What each grammar allows, for people. Istio's lists know no ranges.
const (
	modeList = "REDIRECT or TPROXY"
	portList = `"*", or ports from 0 to 65535 separated by commas`
	cidrList = "CIDR prefixes separated by commas, without spaces"
	boolean  = "true or false"
)

var schema = redirect.Schema{
	Defaults: Defaults(),
	RunAs:    true,
	Settings: []redirect.Setting{
		annotation("mode", modeList, setMode, InterceptionMode),
		// The port is the agent's. The injector that sets it also excludes it
		// from capture, by annotation, so there is nothing to do but to check it.
		annotation("", "a port from 0 to 65535", checkPort, StatusPort),
		annotation("inbound.ports", portList,
			redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Inbound.Ports }, redirect.AllowAll), IncludeInboundPorts),
		annotation("inbound.excludePorts", portList, setExcludeInbound, ExcludeInboundPorts),
		annotation("outbound.ports", portList,
			redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Outbound.Ports }, redirect.AllowAll), IncludeOutboundPorts),
		annotation("outbound.excludePorts", portList,
			redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Outbound.ExcludePorts }, redirect.AllowAll), ExcludeOutboundPorts),
		annotation("outbound.cidrs", `"*", or `+cidrList,
			redirect.PrefixesInto(func(r *redirect.Redirect) *redirect.PrefixSet { return &r.Outbound.CIDRs }, redirect.AllowAll), IncludeOutboundIPRanges),
		annotation("outbound.excludeCIDRs", cidrList,
			redirect.PrefixesInto(func(r *redirect.Redirect) *redirect.PrefixSet { return &r.Outbound.ExcludeCIDRs }, 0), ExcludeOutboundIPRanges),
		annotation("excludeInterfaces", "interface names separated by commas",
			redirect.InterfacesInto(func(r *redirect.Redirect) *[]string { return &r.ExcludeInterfaces }), ExcludeInterfaces),
		annotation("virtualInterfaces", "interface names separated by commas",
			redirect.InterfacesInto(func(r *redirect.Redirect) *[]string { return &r.VirtualInterfaces }), VirtualInterfaces, KubevirtInterfaces),
		env("dns.servers", DNSCapture, func(r *redirect.Redirect, on bool) {
			if on {
				// The pod's resolv.conf cannot be seen from the host.
				r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: DNSPort}
			}
		}),
		env("ipv6", DualStack, func(r *redirect.Redirect, on bool) {
			if on {
				r.IPv6 = redirect.FamilyCapture
			}
		}),
		env("dropInvalid", InvalidDrop, func(r *redirect.Redirect, on bool) { r.DropInvalid = on }),
	},
}

func annotation(field, allowed string, set func(*redirect.Redirect, string) error, keys ...string) redirect.Setting {
	return redirect.Setting{Field: field, Source: redirect.FromAnnotation, Keys: keys, Set: set, Allowed: allowed}
}

func env(field, key string, set func(*redirect.Redirect, bool)) redirect.Setting {
	return redirect.Setting{
		Field: field, Source: redirect.FromEnv, Keys: []string{key}, Set: redirect.Bool(set), Allowed: boolean, Lenient: true,
	}
}

func setMode(r *redirect.Redirect, value string) error {
	switch m := redirect.Mode(value); m {
	case redirect.ModeRedirect, redirect.ModeTProxy:
		r.Mode = m
		return nil
	}
	return fmt.Errorf("%s is no interception mode", brief.Quote(value))
}

func checkPort(_ *redirect.Redirect, value string) error {
	_, err := redirect.ParsePort(value)
	return err
}

func setExcludeInbound(r *redirect.Redirect, value string) error {
	ports, err := redirect.ParsePorts(value, redirect.AllowAll)
	if err == nil {
		r.Inbound.ExcludePorts = ports.Union(alwaysExcluded)
	}
	return err
}
