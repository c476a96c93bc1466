// Package istio is the dialect of Istio's sidecars: pods with an istio-proxy container, configured by annotations of
// sidecar.istio.io and traffic.sidecar.istio.io and by the proxy's environment.
//
// It follows Istio's own CNI plugin, except:
//
//   - With TPROXY, the tunnel port 15008 is let through, as in REDIRECT mode; the plugin captures it.
//   - A pod with the interception mode NONE, a proxy without interception, is left alone; the plugin fails it.
//   - Without the annotation of the mode, the proxy's environment and ProxyConfig count; the plugin assumes REDIRECT.
//
// # Families
//
// IPv4 is always captured, IPv6 when the pod's first address is IPv6 or ISTIO_DUAL_STACK is true. Otherwise IPv6
// connections bypass the mesh if the pod's kernel has IPv6; [dialect.Options] can close that.
package istio

import (
	"net/netip"
	"sync"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// The annotations, from Istio's annotation reference (istio.io/latest/docs/reference/config/annotations).
const (
	StatusAnnotation = "sidecar.istio.io/status"
	InjectKey        = "sidecar.istio.io/inject"

	InterceptionMode        = "sidecar.istio.io/interceptionMode"
	proxyConfig             = "proxy.istio.io/config"
	statusPort              = "status.sidecar.istio.io/port"
	includeOutboundIPRanges = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	excludeOutboundIPRanges = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	includeOutboundPorts    = "traffic.sidecar.istio.io/includeOutboundPorts"
	ExcludeOutboundPorts    = "traffic.sidecar.istio.io/excludeOutboundPorts"
	includeInboundPorts     = "traffic.sidecar.istio.io/includeInboundPorts"
	ExcludeInboundPorts     = "traffic.sidecar.istio.io/excludeInboundPorts"
	excludeInterfaces       = "traffic.sidecar.istio.io/excludeInterfaces"
	virtualInterfaces       = "istio.io/reroute-virtual-interfaces"
	kubevirtInterfaces      = "traffic.sidecar.istio.io/kubevirtInterfaces" // deprecated
)

// The variables of the istio-proxy container.
const (
	dnsCapture           = "ISTIO_META_DNS_CAPTURE"
	DualStack            = "ISTIO_DUAL_STACK"
	invalidDrop          = "INVALID_DROP"
	disableEnvoy         = "DISABLE_ENVOY"
	metaInterceptionMode = "ISTIO_META_INTERCEPTION_MODE"
	proxyConfigEnv       = "PROXY_CONFIG"
)

// Ports of Istio's proxy (istio.io/latest/docs/ops/deployment/application-requirements).
const (
	outboundPort   = 15001
	probePort      = 15002
	inboundPort    = 15006
	tunnelPort     = 15008
	agentPort      = 15020
	healthPort     = 15021
	DNSPort        = 15053
	prometheusPort = 15090
)

// ProxyID is the proxy's user and group, unless its container has others.
const ProxyID = 1337

// alwaysExcluded are the proxy's own ports, which are never captured.
var alwaysExcluded = redirect.Ports(agentPort, healthPort, prometheusPort)

// passIPv6 is ::6, from which Envoy speaks to the application.
var passIPv6 = netip.AddrFrom16([16]byte{15: 6})

// DefaultRedirect is the Redirect of a pod without settings, for IPv4.
func DefaultRedirect() redirect.Redirect {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	r.Proxy = redirect.Proxy{
		UIDs:         []uint32{ProxyID},
		GIDs:         []uint32{ProxyID},
		OutboundPort: outboundPort,
		InboundPort:  inboundPort,
		TunnelPort:   tunnelPort,
		// Envoy's source address towards the application.
		PassSources: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 6}), passIPv6},
	}
	r.Names.LoopbackIPv6 = passIPv6
	r.Inbound.ExcludePorts = alwaysExcluded
	r.Outbound.ExcludePorts = redirect.Ports(agentPort)
	r.Names.ChainPrefix = "ISTIO_"
	return r
}

// New returns the dialect. Pods of the excluded namespaces are left alone.
func New(excludedNamespaces ...string) dialect.Dialect {
	return dialect.Dialect{
		Name:    "istio",
		Domains: []string{"istio.io"},
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"istio-init"},
			ProxyContainers:    []string{"istio-proxy"},
			DisableEnv:         disableEnvoy,
			ProxyCommand:       "proxy",
			ProxyTypes:         []string{"sidecar"},
			InjectKey:          InjectKey,
			StatusAnnotation:   StatusAnnotation,
			Decline:            decline,
		},
		Build: build,
		// Istio's plugin has retired none: the list of istio/cni 1.0 (cmd/istio-cni/redirect.go) is still read, kubevirtInterfaces as deprecated.
		// Before Istio 0.8 one annotation kept the injector off a pod (istio/istio, pilot/platform/kube/inject of 0.1 and 0.2).
		Retired: []dialect.Retired{
			{Key: "alpha.istio.io/sidecar", Value: "ignore", Now: `label sidecar.istio.io/inject with the value "false"`},
		},
		Names: DefaultRedirect().Names,
		Check: dialect.Check{
			Container: "istio-validation",
			ExitCode:  126,
			ProbePort: probePort,
			Outbound:  outboundPort,
			Inbound:   inboundPort,
		},
	}
}

func build(in dialect.Input) (dialect.Reading, error) {
	r, err := in.Read(schema())
	if _, ok := in.Pod.Annotations[InterceptionMode]; !ok {
		_, unread := interception(in.Values())
		r.Warnings = append(r.Warnings, unread...)
	}
	if err == nil && len(in.Addrs) > 0 && ruleset.FamilyOf(in.Addrs[0]) == ruleset.IPv6 {
		r.Redirect.IPv6 = redirect.FamilyCapture
	}
	return r, err
}

// What is allowed, for people. Istio's lists have no ranges.
const (
	portList      = `"*", or ports from 0 to 65535 separated by commas`
	cidrList      = "CIDR prefixes separated by commas, without spaces"
	interfaceList = "interface names separated by commas"
	boolean       = "true or false"
)

var schema = sync.OnceValue(func() redirect.Schema {
	return redirect.Schema{
		Defaults:  DefaultRedirect(),
		RunAs:     true,
		Prefixes:  []string{"traffic.sidecar.istio.io/"}, // all of them are below
		OtherKeys: []string{InjectKey, StatusAnnotation, proxyConfig},
		Settings: []redirect.Setting{
			{Field: "mode", Keys: []string{InterceptionMode}, Allowed: "REDIRECT or TPROXY"},
			// The port is the agent's. The injector that sets it also excludes it from
			// capture, by annotation, so it is only checked.
			{Keys: []string{statusPort}, Allowed: "a port from 0 to 65535", Set: checkPort},
			{Field: "inbound.ports", Keys: []string{includeInboundPorts}, Allowed: portList, Grammar: redirect.Grammar{All: true}},
			{Field: "inbound.excludePorts", Keys: []string{ExcludeInboundPorts}, Allowed: portList, Grammar: redirect.Grammar{All: true}, Add: true},
			{Field: "outbound.ports", Keys: []string{includeOutboundPorts}, Allowed: portList, Grammar: redirect.Grammar{All: true}},
			{Field: "outbound.excludePorts", Keys: []string{ExcludeOutboundPorts}, Allowed: portList, Grammar: redirect.Grammar{All: true}},
			{Field: "outbound.cidrs", Keys: []string{includeOutboundIPRanges}, Allowed: `"*", or ` + cidrList, Grammar: redirect.Grammar{All: true}},
			{Field: "outbound.excludeCIDRs", Keys: []string{excludeOutboundIPRanges}, Allowed: cidrList},
			{Field: "excludeInterfaces", Keys: []string{excludeInterfaces}, Allowed: interfaceList},
			{Field: "virtualInterfaces", Keys: []string{virtualInterfaces, kubevirtInterfaces}, Allowed: interfaceList},
			env("dns.servers", dnsCapture, func(r *redirect.Redirect, on bool) {
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
			env("dropInvalid", invalidDrop, func(r *redirect.Redirect, on bool) { r.DropInvalid = on }),
		},
	}
})

func env(field, key string, set func(*redirect.Redirect, bool)) redirect.Setting {
	return redirect.Setting{
		Field: field, Source: redirect.FromEnv, Keys: []string{key}, Set: redirect.Bool(set), Allowed: boolean, Lenient: true,
	}
}

func checkPort(_ *redirect.Redirect, value string) error {
	_, err := redirect.ParsePort(value, redirect.Grammar{Zero: true})
	return err
}
