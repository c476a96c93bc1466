// Package ambient is the dialect of Istio's ambient mode: pods without a sidecar, whose node proxy (ztunnel) opens its
// sockets inside each pod's network namespace. Rules know it by the mark of its packets, not by a user.
//
// It follows the rules that Istio's node agent sets in a pod, and the selectors of Istio's chart. An annotation that
// cannot be read refuses the pod; Istio's agent logs and ignores it.
//
// # Out of scope
//
// The rest of ambient mode is the work of an agent: passing the namespace to the node proxy, enrolling pods that run
// already, the annotation that reports it, and the host's rules that give the kubelet's probes the source
// [ProbeSources]. It needs a pod's Plan only, whose Ruleset includes the routing.
//
// # Families
//
// Both are captured.
package ambient

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// DataplaneMode is the label, of pods and of namespaces, that enables ambient
// mode ("ambient") and, on pods, disables it ("none").
const DataplaneMode = "istio.io/dataplane-mode"

// SidecarStatus is the annotation of pods with a sidecar, which are left alone.
const SidecarStatus = "sidecar.istio.io/status"

// The annotation by which the node's agent reports a pod's state, and its values. Istio's control plane has all peers
// speak the tunnel's protocol to a pod that says it is enabled.
const (
	Redirection        = "ambient.istio.io/redirection"
	RedirectionEnabled = "enabled"
	RedirectionPending = "pending"
)

// The annotations that configure a pod.
const (
	BypassInbound     = "ambient.istio.io/bypass-inbound-capture"
	DNSCapture        = "ambient.istio.io/dns-capture"
	VirtualInterfaces = "istio.io/reroute-virtual-interfaces"
)

// Ports of the node proxy.
const (
	OutboundPort = 15001
	InboundPort  = 15006
	TunnelPort   = 15008
	DNSPort      = 15053
)

// Marks and routing, as Istio and its node proxy use them.
const (
	ProxyMark     = 0x539
	ReplyMark     = 0x111
	MarkMask      = 0xfff
	RouteTable    = 100
	RoutePriority = 32764
)

// ProbeSources are the source addresses that the host's rules give the kubelet's probes.
func ProbeSources() redirect.PrefixSet {
	return redirect.Prefixes(
		netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 7, 127}), 32),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x16, 0x92, 0x54, 0x71, 0x27, 0x13, 0x37, 255, 255, 255, 255, 255, 255, 255, 255}), 128),
	)
}

// Selectors are the defaults of Istio's chart: pods with the label value "ambient",
// and in namespaces with it all pods except those with "none".
func Selectors() []selection.Selector {
	enabled := metav1.LabelSelector{MatchLabels: map[string]string{DataplaneMode: "ambient"}}
	return []selection.Selector{
		{Pod: enabled},
		{
			Pod: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: DataplaneMode, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"none"}},
			}},
			Namespace: enabled,
		},
	}
}

// Defaults is the Redirect of a pod without settings.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{
		Mark:         redirect.Mark{Value: ProxyMark, Mask: MarkMask},
		OutboundPort: OutboundPort,
		InboundPort:  InboundPort,
		TunnelPort:   TunnelPort,
	}
	r.Inbound.ExcludeSources = ProbeSources()
	// Answers to probes that conntrack no longer knows.
	r.Outbound.Exclude = []redirect.Exclusion{{Protocol: redirect.TCP, Ports: redirect.AllPorts(), CIDRs: ProbeSources()}}
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: DNSPort}
	r.Loopback, r.FinalPass = redirect.LoopbackPass, true
	r.Names.ChainPrefix = "ISTIO_"
	r.Names.InboundMark, r.Names.MarkMask = ReplyMark, MarkMask
	r.Names.RouteTable, r.Names.RoutePriority = RouteTable, RoutePriority
	r.Names.OtherChains, r.Names.OtherTables = []string{agentPrerouting}, agentTables()
	return r
}

// New returns the dialect with Istio's own selectors. Pods of the excluded namespaces are left alone.
func New(excludedNamespaces ...string) dialect.Dialect {
	d, err := WithSelectors(Selectors(), excludedNamespaces...)
	if err != nil {
		panic("ambient: " + err.Error())
	}
	return d
}

// WithSelectors is New with other selectors; a pod that matches one of them is in the
// mesh. An error means that a selector is invalid, or that there is none.
func WithSelectors(selectors []selection.Selector, excludedNamespaces ...string) (dialect.Dialect, error) {
	policy := selection.Policy{
		ExcludedNamespaces: excludedNamespaces,
		ForeignAnnotation:  SidecarStatus,
		Selectors:          selectors,
	}
	if err := policy.Validate(); err != nil {
		return dialect.Dialect{}, fmt.Errorf("ambient selectors: %w", err)
	}
	if len(selectors) == 0 {
		return dialect.Dialect{}, fmt.Errorf("ambient selectors: none, which would select every pod")
	}
	return dialect.Dialect{
		Name:           "ambient",
		Policy:         policy,
		Build:          dialect.FromSchema(schema),
		Names:          Defaults().Names,
		NeedsNamespace: true,
		// The node proxy is no container of the pod, so none checks.
		Validation: dialect.Validation{Outbound: OutboundPort, Inbound: InboundPort},
		NodeProxy: &dialect.NodeProxy{
			StatusAnnotation: Redirection, Enrolled: RedirectionEnabled, Pending: RedirectionPending,
			ProbeSources: ProbeSources(),
		},
	}, nil
}

const boolean = "true or false"

var schema = redirect.Schema{
	Defaults: Defaults(),
	Settings: []redirect.Setting{
		{Field: "inbound.ports", Keys: []string{BypassInbound}, Allowed: boolean, Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
			if on {
				r.Inbound = redirect.Inbound{}
			}
		})},
		{Field: "dns.servers", Keys: []string{DNSCapture}, Allowed: boolean, Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
			if !on {
				r.DNS = redirect.DNS{}
			}
		})},
		{Field: "virtualInterfaces", Keys: []string{VirtualInterfaces}, Allowed: "interface names separated by commas"},
	},
}
