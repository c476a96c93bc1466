// Package linkerd is the dialect of Linkerd: pods with a linkerd-proxy
// container, configured by annotations of config.linkerd.io on the pod or,
// where the pod has none, on its namespace.
//
// It promises what Linkerd's reference of proxy configuration promises
// (linkerd.io/2/reference/proxy-configuration) and otherwise follows its CNI
// plugin. It differs from the plugin where that falls short of the reference:
//
//   - A port that is no port is refused, with its key; the plugin drops it with
//     a log line, so that traffic meant to be skipped is redirected.
//   - Prefixes of both families may stand in one list of skipped subnets; the
//     plugin gives all to both iptables and ip6tables, which fail.
//   - config.linkerd.io/inbound-port and outbound-port count; the plugin takes
//     the ports from its own configuration whatever the pod's proxy does.
//   - The proxy's user is, without annotation, its container's runAsUser.
//
// # Families
//
// Both families are captured, unless the proxy's own environment says that it
// listens on IPv4 only (LINKERD2_PROXY_INBOUND_LISTEN_ADDR). Then IPv6
// connections bypass the mesh wherever the pod's kernel has the protocol;
// [dialect.Options] can close that.
package linkerd

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/brief"
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

// The annotations that Linkerd leaves on pods with a proxy: the injector and
// "linkerd inject --manual", which share their code, and the chart on the pods
// of the control plane. The first is there in every version that has proxies;
// the others are so in some.
const (
	ProxyVersion = "linkerd.io/proxy-version"
	CreatedBy    = "linkerd.io/created-by"
	IdentityMode = "linkerd.io/identity-mode"
	TrustRoot    = "linkerd.io/trust-root-sha256"
)

// ControlPlaneLabel is on pods of Linkerd's own control plane, which speak to
// the API server without the mesh.
const ControlPlaneLabel = "linkerd.io/control-plane-component"

// The variables that tell the proxy where to listen.
const (
	InboundListen  = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
	OutboundListen = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR"
)

// Defaults of Linkerd's charts.
const (
	DefaultInboundPort  = 4143
	DefaultOutboundPort = 4140
	ControlPort         = 4190
	AdminPort           = 4191
	DefaultUID          = 2102
)

// ownPorts are the proxy's own listeners, which no annotation captures.
var ownPorts = redirect.Ports(ControlPort, AdminPort)

// apiServerPorts are those of the API server's Service and of its usual
// target, which Linkerd takes when it cannot ask.
var apiServerPorts = redirect.Ports(443, 6443)

// Defaults is the Redirect of a pod that says nothing.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{
		UIDs:         []uint32{DefaultUID},
		OutboundPort: DefaultOutboundPort,
		InboundPort:  DefaultInboundPort,
	}
	r.Inbound.ExcludePorts = ownPorts
	r.Loopback = redirect.LoopbackPass
	r.Names.ChainPrefix = "PROXY_INIT_"
	return r
}

// New returns the dialect. The namespaces are left alone altogether.
func New(excludedNamespaces ...string) dialect.Dialect {
	return dialect.Dialect{
		Name: "linkerd",
		Policy: selection.Policy{
			ExcludedNamespaces: excludedNamespaces,
			InitContainers:     []string{"linkerd-init"},
			ProxyContainers:    []string{"linkerd-proxy"},
			Traces:             []string{ProxyVersion, CreatedBy, IdentityMode, TrustRoot},
		},
		Build:          build,
		Names:          Defaults().Names,
		NeedsNamespace: true,
		Validation: dialect.Validation{
			Container:  "linkerd-network-validator",
			ExitCode:   95,
			ProbeAddrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 2})},
			ProbePort:  1404,
			Outbound:   DefaultOutboundPort,
			Inbound:    DefaultInboundPort,
		},
	}
}

func build(in dialect.Input) (dialect.Result, error) {
	r, origins, warnings, err := schema.Build(in.Values())
	if err != nil {
		return dialect.Result{Warnings: warnings}, err
	}
	if component := in.Pod.Labels[ControlPlaneLabel]; component != "" {
		r.Outbound.ExcludePorts = r.Outbound.ExcludePorts.Union(apiServerPorts)
		origins = append(origins, redirect.Origin{
			Field: "outbound.excludePorts", Source: redirect.FromLabel, Key: ControlPlaneLabel, Value: component,
		})
	}
	if w := differentUser(in, r); w != "" {
		warnings = append(warnings, w)
	}
	return dialect.Result{Redirect: r, Origins: origins, Warnings: warnings}, nil
}

// differentUser warns of an annotation that is not how the proxy runs: its
// connections would be redirected to itself.
func differentUser(in dialect.Input, r redirect.Redirect) string {
	runs := in.Values().RunAsUser
	if runs == nil || *runs == 0 || *runs == int64(r.Proxy.UIDs[0]) {
		return ""
	}
	return fmt.Sprintf("annotation %s says %d, but container %q runs as %d", ProxyUID, r.Proxy.UIDs[0], in.Proxy.Name, *runs)
}

// What each grammar allows, for people.
const (
	portList = "ports from 0 to 65535 and ranges such as 8000-8100, separated by commas"
	cidrList = "CIDR prefixes of either family, separated by commas"
	port     = "a port from 1 to 65535"
)

var schema = redirect.Schema{
	Defaults:  Defaults(),
	RunAsUser: true,
	Settings: []redirect.Setting{
		env("proxy.inboundPort", InboundListen, func(r *redirect.Redirect, a netip.AddrPort) {
			r.Proxy.InboundPort = a.Port()
			if a.Addr().Is4() {
				r.IPv6 = redirect.FamilyPass
			}
		}),
		env("proxy.outboundPort", OutboundListen, func(r *redirect.Redirect, a netip.AddrPort) { r.Proxy.OutboundPort = a.Port() }),
		annotation("proxy.inboundPort", port, portInto(func(r *redirect.Redirect) *uint16 { return &r.Proxy.InboundPort }), InboundPort),
		annotation("proxy.outboundPort", port, portInto(func(r *redirect.Redirect) *uint16 { return &r.Proxy.OutboundPort }), OutboundPort),
		annotation("inbound.excludePorts", portList, setSkipInbound, SkipInboundPorts),
		annotation("outbound.excludePorts", portList,
			redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Outbound.ExcludePorts }, redirect.AllowRanges), SkipOutboundPorts),
		annotation("inbound.excludeSources", cidrList, setSkipSubnets, SkipSubnets),
		annotation("proxy.uids", "a user id from 1 to 4294967294", setUID, ProxyUID),
		annotation("proxy.gids", "a group id from 1 to 4294967294, or -1 or 0 for none", setGID, ProxyGID),
	},
}

func annotation(field, allowed string, set func(*redirect.Redirect, string) error, key string) redirect.Setting {
	return redirect.Setting{Field: field, Source: redirect.FromAnnotation, Keys: []string{key}, Set: set, Allowed: allowed, Inherited: true}
}

// env reads where the proxy listens. Linkerd's injector writes it, not people,
// so what is not understood is no reason to refuse a pod.
func env(field, key string, set func(*redirect.Redirect, netip.AddrPort)) redirect.Setting {
	return redirect.Setting{
		Field: field, Source: redirect.FromEnv, Keys: []string{key}, Allowed: "an address and port", Lenient: true,
		Set: func(r *redirect.Redirect, value string) error {
			a, err := netip.ParseAddrPort(value)
			if err != nil || a.Port() == 0 {
				return fmt.Errorf("%s is not an address and port", brief.Quote(value))
			}
			set(r, a)
			return nil
		},
	}
}

func portInto(field func(*redirect.Redirect) *uint16) func(*redirect.Redirect, string) error {
	return func(r *redirect.Redirect, value string) error {
		p, err := redirect.ParsePort(value)
		if err == nil && p == 0 {
			err = fmt.Errorf("0 is no port to listen on")
		}
		if err == nil {
			*field(r) = p
		}
		return err
	}
}

// setSkipInbound adds to the proxy's own ports; the outbound list replaces.
func setSkipInbound(r *redirect.Redirect, value string) error {
	ports, err := redirect.ParsePorts(value, redirect.AllowRanges)
	if err == nil {
		r.Inbound.ExcludePorts = ports.Union(ownPorts)
	}
	return err
}

func setSkipSubnets(r *redirect.Redirect, value string) error {
	parts := strings.Split(value, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	prefixes, err := redirect.ParsePrefixes(strings.Join(parts, ","), 0)
	if err == nil {
		r.Inbound.ExcludeSources = prefixes
	}
	return err
}

func setUID(r *redirect.Redirect, value string) error {
	id, err := parseID(value)
	if err == nil && id == 0 {
		err = fmt.Errorf("0 is root: all that runs as root would bypass the mesh")
	}
	if err == nil {
		r.Proxy.UIDs = []uint32{id}
	}
	return err
}

// setGID takes Linkerd's own default, -1, and 0 for no group.
func setGID(r *redirect.Redirect, value string) error {
	if value == "-1" {
		return nil
	}
	id, err := parseID(value)
	if err == nil && id != 0 {
		r.Proxy.GIDs = []uint32{id}
	}
	return err
}

func parseID(value string) (uint32, error) {
	id, err := strconv.ParseUint(value, 10, 32)
	if err != nil || id == redirect.NoID {
		return 0, fmt.Errorf("%s is not a numeric id", brief.Quote(value))
	}
	return uint32(id), nil
}
