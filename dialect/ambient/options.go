package ambient

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// Options are the settings of a whole mesh. The zero value is what Istio's chart has by default.
type Options struct {
	// ExcludedNamespaces are namespaces whose pods are left alone. Istio's chart has kube-system.
	ExcludedNamespaces []string
	// Selectors pick the pods: one that matches is enough. Nil: [Selectors]. Empty, but not nil: no pod.
	Selectors []selection.Selector
	// NoDNSCapture leaves DNS queries alone, unless a pod's annotation [DNSCapture] says otherwise.
	NoDNSCapture bool
	// NoIPv6 leaves IPv6 alone, so that it bypasses the mesh; see [dialect.Options].
	NoIPv6 bool
	// SystemNamespace is that of the mesh's own pods, in which nobody else may make any: of them, those of ztunnel are never in the mesh. Empty:
	// istio-system.
	SystemNamespace string
	// ProbeIPv4 and ProbeIPv6 are the source addresses that the host's rules give its own connections to pods in the mesh.
	// They must be nobody's. Zero: Istio's, 169.254.7.127 and fd16:9254:7127:1337:ffff:ffff:ffff:ffff.
	ProbeIPv4, ProbeIPv6 netip.Addr
}

// Istio's source addresses of the host's own connections.
var (
	probeIPv4 = netip.AddrFrom4([4]byte{169, 254, 7, 127})
	probeIPv6 = netip.AddrFrom16([16]byte{0xfd, 0x16, 0x92, 0x54, 0x71, 0x27, 0x13, 0x37, 255, 255, 255, 255, 255, 255, 255, 255})
)

// proxyName is the name of ztunnel's DaemonSet, which another revision's begins with, and the value of its pods' label app.
const proxyName = "ztunnel"

// decline leaves the node's proxy alone: it would be captured for itself. A label, or an owner that a pod names, is anybody's to write, so
// they count in the mesh's own namespace only.
func (o Options) decline(pod *corev1.Pod, _ *corev1.Container) (status.Code, string) {
	if pod.Namespace != cmp.Or(o.SystemNamespace, systemNamespace) {
		return "", ""
	}
	if pod.Labels["app"] == proxyName {
		return statuscode.NodeProxyPod, "the pod has the label app: " + proxyName + " in the mesh's own namespace"
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner != nil && owner.Kind == "DaemonSet" && (owner.Name == proxyName || strings.HasPrefix(owner.Name, proxyName+"-")) {
		return statuscode.NodeProxyPod, "the pod is of the DaemonSet " + owner.Name + " in the mesh's own namespace"
	}
	return "", ""
}

const systemNamespace = "istio-system"

func (o Options) probeSources() redirect.PrefixSet {
	single := func(a, byDefault netip.Addr) netip.Prefix {
		if !a.IsValid() {
			a = byDefault
		}
		return netip.PrefixFrom(a, a.BitLen())
	}
	return redirect.Prefixes(single(o.ProbeIPv4, probeIPv4), single(o.ProbeIPv6, probeIPv6))
}

// nobody are selectors that match no pod, which is what an operator asks for with an empty list.
var nobody = []selection.Selector{{Pod: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
	{Key: DataplaneMode, Operator: metav1.LabelSelectorOpExists}, {Key: DataplaneMode, Operator: metav1.LabelSelectorOpDoesNotExist},
}}}}

// Validate returns a [*dialect.KeyError] for each option that cannot be, joined.
func (o Options) Validate() error {
	var errs []error
	if err := (selection.Policy{Selectors: o.Selectors}).Validate(); err != nil && len(o.Selectors) > 0 {
		errs = append(errs, &dialect.KeyError{Key: Name + ".enablement_selectors", Err: err})
	}
	if o.SystemNamespace != "" && len(validation.IsDNS1123Label(o.SystemNamespace)) > 0 {
		errs = append(errs, &dialect.KeyError{Key: Name + ".system_namespace", Err: fmt.Errorf("%q is not a namespace's name", o.SystemNamespace)})
	}
	for _, p := range []struct {
		key, family string
		addr        netip.Addr
		is          bool
	}{{".probe_ipv4", "IPv4", o.ProbeIPv4, o.ProbeIPv4.Is4()}, {".probe_ipv6", "IPv6", o.ProbeIPv6, o.ProbeIPv6.Is6() && !o.ProbeIPv6.Is4In6()}} {
		usable := !p.addr.IsUnspecified() && !p.addr.IsLoopback() && !p.addr.IsMulticast() && p.addr.Zone() == ""
		if p.addr.IsValid() && !(p.is && usable) {
			errs = append(errs, &dialect.KeyError{Key: Name + p.key, Err: fmt.Errorf("%q is not a single host's %s address", p.addr, p.family)})
		}
	}
	return errors.Join(errs...)
}

// defaults is the Redirect of a pod without settings.
func (o Options) defaults() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{
		Mark:         redirect.Mark{Value: ProxyMark, Mask: markMask},
		OutboundPort: OutboundPort,
		InboundPort:  InboundPort,
		TunnelPort:   TunnelPort,
	}
	r.Inbound.ProbeSources = o.probeSources()
	// Answers to probes that conntrack no longer knows.
	r.Outbound.Exclude = []redirect.Exclusion{{Protocol: redirect.TCP, Ports: redirect.AllPorts(), CIDRs: o.probeSources()}}
	r.Loopback, r.FinalPass = redirect.LoopbackPass, true
	if !o.NoDNSCapture {
		r.DNS = captured
	}
	if o.NoIPv6 {
		r.IPv6 = redirect.FamilyPass
	}
	r.Names.ChainPrefix = "ISTIO_"
	r.Names.InboundMark, r.Names.MarkMask = replyMark, markMask
	r.Names.RouteTable, r.Names.RoutePriority = routeTable, routePriority
	r.Names.OtherChains, r.Names.OtherTables = []string{agentPrerouting}, agentTables()
	return r
}

// captured sends all DNS queries to the proxy.
var captured = redirect.DNS{Servers: redirect.AllPrefixes(), Port: dnsPort}

// DefaultRedirect is the Redirect of a pod without settings, with the default [Options].
func DefaultRedirect() redirect.Redirect { return Options{}.defaults() }

// New returns the dialect. It panics if the options are not valid: [Options.Validate] tells before.
func New(o Options) dialect.Dialect {
	if err := o.Validate(); err != nil {
		panic(err)
	}
	switch {
	case o.Selectors == nil:
		o.Selectors = Selectors()
	case len(o.Selectors) == 0:
		o.Selectors = nobody
	}
	defaults := o.defaults()
	return dialect.Dialect{
		Name:    Name,
		Domains: []string{"istio.io"},
		// Where Istio redirected on the host, it left pods alone by it.
		Retired: []dialect.Retired{{Key: "ambient.istio.io/redirection", Value: "disabled", Now: "label istio.io/dataplane-mode=none"}},
		Policy: selection.Policy{
			ExcludedNamespaces: o.ExcludedNamespaces,
			ForeignAnnotation:  sidecarStatus,
			Selectors:          o.Selectors,
			Decline:            o.decline,
		},
		Configure: o.configured,
		Build: func(in dialect.Input) (dialect.Reading, error) {
			r, err := in.Read(redirect.Schema{Defaults: defaults, Settings: settings})
			if err == nil && !r.Redirect.Inbound.ProbeSources.Empty() {
				r.Redirect.Inbound.ProbePorts = in.ProbePorts()
			}
			return r, err
		},
		Names: defaults.Names,
		// The node proxy is no container of the pod, so none checks.
		Check: dialect.Check{Outbound: OutboundPort, Inbound: InboundPort},
		NodeProxy: &dialect.NodeProxy{
			StatusAnnotation: Redirection, Enrolled: redirectionEnabled, Pending: redirectionPending,
			ProbeSources: o.probeSources(),
			Agents:       map[string]dialect.OtherAgent{istioCNI: {Rules: AgentRuleset, Layout: AgentLayout()}},
		},
	}
}

const boolean = "true or false"

var settings = []redirect.Setting{
	{Field: "inbound.ports", Keys: []string{bypassInbound}, Allowed: boolean, Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
		if on {
			r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()}
		}
	})},
	{Field: "dns.servers", Keys: []string{DNSCapture}, Allowed: boolean, Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
		r.DNS = redirect.DNS{}
		if on {
			r.DNS = captured
		}
	})},
	{Field: "virtualInterfaces", Keys: []string{virtualInterfaces}, Allowed: "interface names separated by commas"},
}
