// Package linkerd is the dialect of Linkerd: pods with a linkerd-proxy container, configured by annotations of
// config.linkerd.io on the pod or, where the pod has none, on its namespace.
//
// It follows Linkerd's reference of proxy configuration (linkerd.io/2/reference/proxy-configuration), and otherwise
// Linkerd's CNI plugin. It differs from the plugin where the plugin falls short of the reference:
//
//   - A bad port is refused, with its key. The plugin logs and drops it, so traffic
//     that should be skipped is redirected.
//   - A list of skipped subnets may have prefixes of both families. The plugin
//     passes all of them to both iptables and ip6tables, which fail.
//   - config.linkerd.io/inbound-port and outbound-port count. The plugin takes the
//     ports from its own configuration, whatever the pod's proxy does.
//   - Without annotation, the proxy's user is its container's runAsUser.
//
// # Families
//
// Both are captured, unless the proxy listens on IPv4 only (LINKERD2_PROXY_INBOUND_LISTEN_ADDR). IPv6 connections then
// bypass the mesh if the pod's kernel has IPv6; [dialect.Options] can close that.
package linkerd

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// The annotations. Each may stand on the pod or on its namespace.
const (
	SkipInboundPorts  = "config.linkerd.io/skip-inbound-ports"
	SkipOutboundPorts = "config.linkerd.io/skip-outbound-ports"
	SkipSubnets       = "config.linkerd.io/skip-subnets"
	ProxyUID          = "config.linkerd.io/proxy-uid"
	ProxyGID          = "config.linkerd.io/proxy-gid"
	InboundPort       = "config.linkerd.io/inbound-port"
	OutboundPort      = "config.linkerd.io/outbound-port"
)

// The annotations on pods with a proxy, by the injector, "linkerd inject --manual", and, on the control plane's pods,
// the chart. Every version writes the first; some write the others.
const (
	ProxyVersion = "linkerd.io/proxy-version"
	createdBy    = "linkerd.io/created-by"
	identityMode = "linkerd.io/identity-mode"
	trustRoot    = "linkerd.io/trust-root-sha256"
)

// controlPlaneLabel is on pods of Linkerd's control plane, whose connections to the API server bypass the mesh.
const controlPlaneLabel = "linkerd.io/control-plane-component"

// The variables that tell the proxy where to listen.
const (
	inboundListen  = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
	outboundListen = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR"
)

// Defaults of Linkerd's charts.
const (
	defaultInboundPort  = 4143
	defaultOutboundPort = 4140
	controlPort         = 4190
	adminPort           = 4191
	defaultUID          = 2102
)

// ownPorts are the proxy's own listeners, which are never captured.
var ownPorts = redirect.Ports(controlPort, adminPort)

// apiServerPorts are the ports of the API server's Service and of its usual target,
// as Linkerd uses them when it cannot ask.
var apiServerPorts = redirect.Ports(443, 6443)

// DefaultRedirect is the Redirect of a pod without settings.
func DefaultRedirect() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{
		UIDs:         []uint32{defaultUID},
		OutboundPort: defaultOutboundPort,
		InboundPort:  defaultInboundPort,
	}
	r.Inbound.ExcludePorts = ownPorts
	r.Loopback = redirect.LoopbackPass
	r.Names.ChainPrefix = "PROXY_INIT_"
	return r
}

// New returns the dialect. Pods of the excluded namespaces are left alone.
func New(excludedNamespaces ...string) dialect.Dialect {
	return dialect.Dialect{
		Name:    "linkerd",
		Domains: []string{"linkerd.io"},
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"linkerd-init"},
			ProxyContainers:    []string{"linkerd-proxy"},
			Traces:             []string{ProxyVersion, createdBy, identityMode, trustRoot},
		},
		Build: build,
		// From edge releases before stable-2.3, by their pkg/k8s/labels.go (linkerd/linkerd2 at 6f254c19). Those since then read the annotations of
		// config.linkerd.io above, of which the documentation of 2.9 to 2.18 has retired none that is about redirection.
		Retired: []dialect.Retired{
			{Key: "proxy.linkerd.io/ignore-inbound-ports", Now: "annotation " + SkipInboundPorts},
			{Key: "proxy.linkerd.io/ignore-outbound-ports", Now: "annotation " + SkipOutboundPorts},
			{Key: "proxy.linkerd.io/inbound-port", Now: "annotation " + InboundPort},
			{Key: "proxy.linkerd.io/outbound-port", Now: "annotation " + OutboundPort},
			{Key: "proxy.linkerd.io/uid", Now: "annotation " + ProxyUID},
		},
		Names: DefaultRedirect().Names,
		Check: dialect.Check{
			Container:  "linkerd-network-validator",
			ExitCode:   95,
			ProbeAddrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 2})},
			ProbePort:  1404,
			Outbound:   defaultOutboundPort,
			Inbound:    defaultInboundPort,
		},
	}
}

func build(in dialect.Input) (dialect.Reading, error) {
	r, err := in.Read(schema())
	if err != nil {
		return r, err
	}
	if component := in.Pod.Labels[controlPlaneLabel]; component != "" {
		r.Redirect.Outbound.ExcludePorts = r.Redirect.Outbound.ExcludePorts.Union(apiServerPorts)
		r.Origins = append(r.Origins, redirect.Origin{
			Field: "outbound.excludePorts", Source: redirect.FromLabel, Key: controlPlaneLabel, Value: component,
		})
	}
	return r, nil
}

// What is allowed, for people.
const (
	portList = "ports from 0 to 65535 and ranges such as 8000-8100, separated by commas"
	cidrList = "CIDR prefixes of either family, separated by commas"
	port     = "a port from 1 to 65535"
)

var schema = sync.OnceValue(func() redirect.Schema {
	return redirect.Schema{
		Defaults:  DefaultRedirect(),
		RunAsUser: true,
		Settings: []redirect.Setting{
			env("proxy.inboundPort", inboundListen, func(r *redirect.Redirect, a netip.AddrPort) {
				r.Proxy.InboundPort = a.Port()
				if a.Addr().Is4() {
					r.IPv6 = redirect.FamilyPass
				}
			}),
			env("proxy.outboundPort", outboundListen, func(r *redirect.Redirect, a netip.AddrPort) { r.Proxy.OutboundPort = a.Port() }),
			{Field: "proxy.inboundPort", Keys: []string{InboundPort}, Allowed: port, Inherited: true},
			{Field: "proxy.outboundPort", Keys: []string{OutboundPort}, Allowed: port, Inherited: true},
			{Field: "inbound.excludePorts", Keys: []string{SkipInboundPorts}, Allowed: portList, Grammar: redirect.Grammar{Ranges: true}, Add: true, Inherited: true},
			{Field: "outbound.excludePorts", Keys: []string{SkipOutboundPorts}, Allowed: portList, Grammar: redirect.Grammar{Ranges: true}, Inherited: true},
			{Field: "inbound.excludeSources", Keys: []string{SkipSubnets}, Allowed: cidrList, Grammar: redirect.Grammar{Spaces: true}, Inherited: true},
			{Field: "proxy.uids", Keys: []string{ProxyUID}, Allowed: "a user id from 1 to 4294967294", Set: redirect.SetProxyUser, Inherited: true},
			{Field: "proxy.gids", Keys: []string{ProxyGID}, Allowed: "a group id from 1 to 4294967294, or -1 or 0 for none", Set: setGID, Inherited: true},
		},
	}
})

// env reads the address and port where the proxy listens. Linkerd's injector writes
// it, not people, so a bad value is no reason to refuse a pod.
func env(field, key string, set func(*redirect.Redirect, netip.AddrPort)) redirect.Setting {
	return redirect.Setting{
		Field: field, Source: redirect.FromEnv, Keys: []string{key}, Allowed: "an address and port", Lenient: true,
		Set: func(r *redirect.Redirect, value string) error {
			a, err := netip.ParseAddrPort(value)
			if err != nil || a.Port() == 0 {
				return fmt.Errorf("%s is not an address and port", truncate.Quote(value))
			}
			set(r, a)
			return nil
		},
	}
}

// setGID takes -1, Linkerd's default, and 0 for no group.
func setGID(r *redirect.Redirect, value string) error {
	if value == "-1" {
		return nil
	}
	id, err := strconv.ParseUint(value, 10, 32)
	if err != nil || id == uint64(redirect.NoID) {
		return fmt.Errorf("%s is not a numeric id", truncate.Quote(value))
	}
	if id != 0 {
		r.Proxy.GIDs = []uint32{uint32(id)}
	}
	return nil
}
