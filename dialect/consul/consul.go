// Package consul is the dialect of Consul's service mesh with transparent proxying: pods that Consul's injector
// configures by JSON in one annotation, and sandboxes of Nomad, which has the same JSON in CNI_ARGS.
//
// It follows Consul's own CNI plugin (consul-k8s) and its rules (package sdk/iptables of consul), except:
//
//   - Every value of the JSON is checked, and refused with its key; Consul passes
//     them to iptables as they are. Whatever iptables accepts is accepted: "80:90"
//     is a range of ports, "10.0.0.1" a prefix, "1000-2000" a range of users.
//   - A list may have prefixes of both families; Consul passes all of them to both iptables and ip6tables, which fail.
//   - Consul's plugin updates the status annotation twice in each ADD, with the whole pod. Here it is patched once, and
//     only if the plugin's configuration has "write_status".
//
// A pod is left alone whose init container sets the rules itself; see initContainer.
//
// An application's connections to its own pod's address are redirected, as by Consul's rules; those to localhost pass.
//
// # Families
//
// IPv4 is always captured, IPv6 when the annotation dual-stack is true. Otherwise IPv6 connections bypass the mesh if
// the pod's kernel has IPv6; [dialect.Options] can close that. With dual stack, Consul's DNS is reached by IPv6 only,
// and without it by IPv4 only.
package consul

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// The annotations, which Consul's injector writes.
const (
	InjectStatus           = "consul.hashicorp.com/connect-inject-status"
	meshInjectStatus       = "consul.hashicorp.com/mesh-inject-status" // Consul's catalog v2
	TransparentProxyStatus = "consul.hashicorp.com/transparent-proxy-status"
	RedirectTrafficConfig  = "consul.hashicorp.com/redirect-traffic-config"
	DualStack              = "consul.hashicorp.com/dual-stack"
	// services are the pod's services, separated by commas.
	services = "consul.hashicorp.com/connect-service"
)

// initContainer waits for the pod's registration in Consul. Where there is no CNI plugin it also sets the rules, for which the
// injector makes it privileged with the capability NET_ADMIN.
const initContainer = "consul-connect-inject-init"

// Values of TransparentProxyStatus.
const (
	StatusWaiting  = "waiting"
	statusComplete = "complete"
)

// Defaults of Consul on Kubernetes.
const (
	InboundPort  = 20000
	OutboundPort = 15001
	ProxyUID     = 5995
)

// DefaultRedirect is the Redirect of a pod whose JSON has the usual user and ports only.
func DefaultRedirect() redirect.Redirect {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	r.Proxy = redirect.Proxy{UIDs: []uint32{ProxyUID}, OutboundPort: OutboundPort, InboundPort: InboundPort}
	r.Loopback = redirect.LoopbackCapture
	r.Names.ChainPrefix = "CONSUL_PROXY_"
	return r
}

// New returns the dialect. Pods of the excluded namespaces are left alone.
func New(excludedNamespaces ...string) dialect.Dialect {
	return dialect.Dialect{
		Name:    "consul",
		Domains: []string{"consul.hashicorp.com"},
		Policy: selection.Policy{
			ExcludedNamespaces:       excludedNamespaces,
			PrivilegedInitContainers: []string{initContainer},
			Required: []selection.Requirement{
				{Keys: []string{InjectStatus, meshInjectStatus}},
				{Keys: []string{TransparentProxyStatus}},
			},
		},
		Build: build,
		Retired: []dialect.Retired{
			// Read while consul-cni was in development, in 2022 (hashicorp/consul-k8s at cee83eba, control-plane/cni/main.go). Its releases since
			// 0.48 read, besides the two status annotations, only those above: none has retired one.
			{Key: "consul.hashicorp.com/cni-proxy-config", Now: "annotation " + RedirectTrafficConfig},
		},
		Names:     DefaultRedirect().Names,
		Injected:  injected,
		Applied:   map[string]string{TransparentProxyStatus: statusComplete},
		Sandboxes: &dialect.Sandboxes{Key: iptablesConfig, Build: buildSandbox},
		// Consul has no container that checks.
		Check: dialect.Check{Outbound: OutboundPort, Inbound: InboundPort},
	}
}

// Settings of the pod that the injector puts into the JSON of RedirectTrafficConfig (docs of consul-k8s, "Annotations and Labels").
const (
	transparentProxy = "consul.hashicorp.com/transparent-proxy"
	exclude          = "consul.hashicorp.com/transparent-proxy-exclude-" // inbound-ports, outbound-ports, outbound-cidrs, uids
)

// injected marks the pod as connect-inject does, for one service and IPv4.
func injected(pod *corev1.Pod) {
	marks := map[string]string{InjectStatus: "injected", DualStack: "false"}
	if pod.Annotations[InjectStatus] != "" || pod.Annotations[meshInjectStatus] != "" {
		return
	}
	if on, err := strconv.ParseBool(pod.Annotations[transparentProxy]); on || err != nil {
		list := func(what string) []string {
			return strings.FieldsFunc(pod.Annotations[exclude+what], func(r rune) bool { return r == ',' })
		}
		text, _ := json.Marshal(map[string]any{ // of strings and numbers
			"ProxyUserID": strconv.Itoa(ProxyUID), "ProxyInboundPort": InboundPort, "ProxyOutboundPort": OutboundPort,
			"ExcludeInboundPorts": list("inbound-ports"), "ExcludeOutboundPorts": list("outbound-ports"),
			"ExcludeOutboundCIDRs": list("outbound-cidrs"), "ExcludeUIDs": list("uids"),
		})
		marks[TransparentProxyStatus], marks[RedirectTrafficConfig] = "enabled", string(text)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, marks)
	user := int64(ProxyUID)
	for _, name := range proxies(pod.Annotations[services]) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, SecurityContext: &corev1.SecurityContext{
			RunAsUser: &user, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}})
	}
}

func build(in dialect.Input) (dialect.Reading, error) {
	r := DefaultRedirect()
	p := parser{root: RedirectTrafficConfig, redirect: &r}
	dualStack := p.dualStack(in.Pod.Annotations)
	if text, ok := in.Pod.Annotations[RedirectTrafficConfig]; ok {
		p.config(text, dualStack)
	} else {
		r.Proxy.UIDs = nil
		p.Refuse(RedirectTrafficConfig, "", "JSON", fmt.Errorf("the annotation is absent, so Consul's injector has not finished with the pod"))
	}
	result, err := p.done(r)
	result.ProxyContainers = proxies(in.Pod.Annotations[services])
	return result, err
}

func (p *parser) done(r redirect.Redirect) (dialect.Reading, error) {
	p.Default("inbound.excludePorts", "outbound.excludePorts", "outbound.excludeCIDRs", "outbound.exclude", "dns.to", "proxy.outboundPort", "ipv6")
	return p.Reading(r)
}

// proxies returns the names of the pod's proxy containers: one, or, for a pod with
// several services, one for each. (Consul's injector does not capture the latter.)
func proxies(services string) []string {
	const one = "consul-dataplane"
	names := strings.Split(services, ",")
	if len(names) == 1 {
		return []string{one}
	}
	for i, service := range names {
		names[i] = one + "-" + service
	}
	return names
}

// dualStack reads that annotation, which has no default.
func (p *parser) dualStack(annotations map[string]string) bool {
	value, ok := annotations[DualStack]
	if !ok {
		p.Refuse(DualStack, "", "true or false", fmt.Errorf("the annotation is absent: the injectors of consul-k8s before 1.9, which capture IPv4 alone, do not write it; false says the same"))
		return false
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		p.Refuse(DualStack, value, "true or false", fmt.Errorf("%s is not a boolean", truncate.Quote(value)))
		return false
	}
	if on {
		p.redirect.IPv6 = redirect.FamilyCapture
	}
	p.Set("ipv6", DualStack, value)
	return on
}
