// Package istiofacts has the facts of Istio that its rules do not need: see [mesh.Facts]. [Flags] are those of its init container's program.
package istiofacts

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
	"github.com/meshcni/meshcni/status"
)

// New returns the facts of Istio's sidecars. Its CNI plugin serves ambient mode too.
func New() mesh.Facts {
	on, off := []string{"true"}, []string{"false"}
	return mesh.Facts{
		Name: "istio", Title: "Istio (sidecar)",
		Injection: mesh.Injection{
			Pod: []mesh.Wish{mesh.Label(istio.InjectKey, on, off), mesh.Annotation(istio.InjectKey, on, off), mesh.Label("istio.io/rev", nil, nil)},
			Namespace: []mesh.Wish{
				mesh.Label("istio-injection", []string{"enabled"}, []string{"disabled"}), mesh.Label("istio.io/rev", nil, nil),
			},
			Unasked:    mesh.Yes,
			Webhook:    "sidecar-injector.istio.io",
			Health:     "istioctl experimental check-inject says why, and kubectl --namespace istio-system get pods --selector app=istiod whether the injector runs",
			PluginMode: "pilot.cni.enabled=true in the values of istiod's chart",
			Never:      []string{"kube-system", "kube-public", "kube-node-lease"},
		},
		TestPod: mesh.TestPod{
			Annotations: map[string]string{istio.StatusAnnotation: `{"containers":["istio-proxy"]}`},
			Env:         []corev1.EnvVar{{Name: istio.DualStack, Value: "true"}},
		},
		Init:        &mesh.Init{Commands: []string{"istio-iptables"}, Flags: append(Flags(), others...), Redirect: written},
		PluginTypes: []string{"istio-cni"}, Deliberate: deliberate,
		Advice: map[status.Code]mesh.Advice{
			status.CodeProxyDisabled: {
				Because: "its proxy is switched off: %s",
				Do:      "Take that variable away where it comes from: proxyMetadata in the annotation proxy.istio.io/config of the pod's template, or in meshConfig.defaultConfig",
			},
			status.CodeInterceptionNone: {
				Because: "it asks for a proxy without redirection (%s), so applications address the proxy themselves", Meant: "that is meant", Annotation: istio.InterceptionMode,
				Do: "Else take interceptionMode out of the annotation proxy.istio.io/config of its template, or of meshConfig.defaultConfig",
			},
		},
	}
}

// deliberate is about the source of probes, see docs/dialects/ambient.md, and about TPROXY: see "Difference to istio-cni" in
// docs/dialects/istio.md, and docs/comparison.md.
func deliberate(r redirect.Redirect, p trace.Packet) string {
	isSource := func(source netip.Prefix) bool { return source.Contains(p.Src.Addr()) }
	switch {
	case p.Direction == trace.In && slices.ContainsFunc(r.Inbound.ProbeSources.Family(ruleset.FamilyOf(p.Src.Addr())), isSource):
		return "the node's own connections to ports that no probe or hook of the pod asks pass the proxy there, and go through it here"
	case r.Mode != redirect.ModeTProxy:
	case p.Direction == trace.In && r.Proxy.TunnelPort != 0 && p.Dst.Port() == r.Proxy.TunnelPort:
		return fmt.Sprintf("inbound connections to the proxy's tunnel port %d go to its inbound port there, and straight to the tunnel port here, as with REDIRECT", p.Dst.Port())
	case p.Direction == trace.Out && p.Mark == r.Names.InboundMark: // the policy route keeps them in the pod
		return "what the proxy sends to the application with the client's address comes back to the proxy there, without end, if the proxy runs as the mesh's user and not as root; here it arrives"
	}
	return ""
}
