// Package ambient is the dialect of Istio's ambient mode: pods without a sidecar, whose node proxy (ztunnel) opens its
// sockets inside each pod's network namespace. Rules know it by the mark of its packets, not by a user.
//
// Each packet ends where it does under the rules that Istio's node agent sets in a pod, and the selectors are those of
// Istio's chart. An annotation that cannot be read refuses the pod; Istio's agent logs and ignores it.
//
// The rest of ambient mode is the work of an agent: handing the pod's network namespace to the node proxy, pods that run
// already, the annotation that reports it, and the host's rules that give the kubelet's probes their source. It needs a
// pod's Plan only, whose Ruleset includes the routing. Package nodeproxy has one.
//
// # Families
//
// Both are captured, unless [Options] leave IPv6 alone.
//
// # Istio's own agent
//
// To apply a pod's rules takes over those of Istio's node agent, and [AgentRuleset] gives them back.
package ambient

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/selection"
)

// Name is the dialect's name in configuration.
const Name = "ambient"

// DataplaneMode is the label, of pods and of namespaces, that enables ambient
// mode ("ambient") and, on pods, disables it ("none").
const DataplaneMode = "istio.io/dataplane-mode"

// sidecarStatus is the annotation of pods with a sidecar, which are left alone.
const sidecarStatus = "sidecar.istio.io/status"

// The annotation by which the node's agent reports a pod's state, and its values. Istio's control plane has all peers
// speak the tunnel's protocol to a pod that says it is enabled.
const (
	Redirection        = "ambient.istio.io/redirection"
	redirectionEnabled = "enabled"
	redirectionPending = "pending"
)

// The annotations that configure a pod.
const (
	bypassInbound     = "ambient.istio.io/bypass-inbound-capture"
	DNSCapture        = "ambient.istio.io/dns-capture"
	virtualInterfaces = "istio.io/reroute-virtual-interfaces"
)

// Ports of the node proxy.
const (
	OutboundPort = 15001
	InboundPort  = 15006
	TunnelPort   = 15008
	dnsPort      = 15053
)

// Marks and routing, as Istio and its node proxy use them.
const (
	ProxyMark     = 0x539
	replyMark     = 0x111
	markMask      = 0xfff
	routeTable    = 100
	routePriority = 32764
)

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
