// Package appmesh is a dialect of AWS App Mesh, written to try this library as its users do. It reads the annotations that
// App Mesh's controller writes in CNI mode (appmesh.k8s.aws/appmeshCNI); other pods have the init container proxyinit. Names
// and defaults are those of the controller (aws/aws-app-mesh-controller-for-k8s, pkg/inject). Two things are not verified: the
// variable of a virtual gateway, and that IPv6 is not captured.
package appmesh

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

const keys = "appmesh.k8s.aws/" // what all of App Mesh's keys begin with

// Defaults is the Redirect of a pod without settings.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.IPv6, r.Loopback = redirect.FamilyPass, redirect.LoopbackPass
	r.Proxy = redirect.Proxy{UIDs: []uint32{1337}, OutboundPort: 15001, InboundPort: 15000}
	r.Outbound.ExcludePorts = redirect.Ports(22)
	r.Names.ChainPrefix = "APPMESH_"
	return r
}

// New returns the dialect.
func New() dialect.Dialect {
	return dialect.Dialect{
		Name: "appmesh", Names: Defaults().Names,
		Policy: selection.Policy{
			InitContainers: []string{"proxyinit"}, ProxyContainers: []string{"envoy"}, Decline: decline,
			InjectKey: keys + "sidecarInjectorWebhook", InjectOn: []string{"enabled"}, InjectOff: []string{"disabled"},
		},
		Build: dialect.FromSchema(redirect.Schema{Defaults: Defaults(), Settings: []redirect.Setting{
			{Field: "inbound.ports", Keys: []string{keys + "ports"}},
			{Field: "outbound.excludePorts", Keys: []string{keys + "egressIgnoredPorts"}},
			{Field: "outbound.excludeCIDRs", Keys: []string{keys + "egressIgnoredIPs"}, Grammar: redirect.AllowAddresses | redirect.AllowSpaces},
			{Field: "proxy.inboundPort", Keys: []string{keys + "proxyIngressPort"}},
			{Field: "proxy.outboundPort", Keys: []string{keys + "proxyEgressPort"}},
			{Field: "proxy.uids", Keys: []string{keys + "ignoredUID"}},
			{Field: "proxy.gids", Keys: []string{keys + "ignoredGID"}},
		}}),
	}
}

// VirtualGateway is the reason why a gateway's pod is left alone: its clients connect to Envoy directly.
const VirtualGateway status.Code = "virtual-gateway"

func decline(_ *corev1.Pod, proxy *corev1.Container) (status.Code, string) {
	if proxy != nil && slices.ContainsFunc(proxy.Env, func(e corev1.EnvVar) bool {
		return e.Name == "APPMESH_RESOURCE_ARN" && strings.Contains(e.Value, "/virtualGateway/")
	}) {
		return VirtualGateway, "variable APPMESH_RESOURCE_ARN names a virtual gateway"
	}
	return "", ""
}
