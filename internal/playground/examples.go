package playground

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Example is a pod to look at.
type Example struct {
	// Group is the mesh, and Title what there is to see.
	Group string `json:"group"`
	Title string `json:"title"`
	// Annotation or other key that the example is about; empty: the whole pod.
	Key string `json:"key,omitempty"`
	State
}

// Namespace is the namespace of the examples, without labels and annotations.
const Namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels: {}\n  annotations: {}\n"

// pod is the YAML of an example's pod.
type pod struct {
	labels, annotations []string // lines
	proxy               string   // more of the application's container, and the proxy's
	spec                string   // more lines of spec
}

func (p pod) text() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: cart\n  namespace: shop\n")
	lines := func(title string, all []string) {
		if len(all) > 0 {
			fmt.Fprintf(&b, "  %s:\n    %s\n", title, strings.Join(all, "\n    "))
		}
	}
	lines("labels", p.labels)
	lines("annotations", p.annotations)
	b.WriteString("spec:\n" + p.spec + "  containers:\n    - name: cart\n      ports: [{containerPort: 8080}]\n")
	b.WriteString("      securityContext: {runAsUser: 1000, capabilities: {drop: [ALL]}}\n" + p.proxy)
	b.WriteString("status:\n  podIPs: [{ip: 10.244.1.5}, {ip: \"fd00:10:244::5\"}]\n")
	return b.String()
}

func quoted(key, value string) string {
	b, _ := json.Marshal(value) // a JSON string is one in YAML
	return key + ": " + string(b)
}

// mesh is how the pods of a mesh look, and its settings with a value to try.
type mesh struct {
	name, title string
	base        pod
	namespace   string
	settings    []setting
}

type setting struct{ key, value string }

const istioProxy = `    - name: istio-proxy
      args: [proxy, sidecar]
      env: [{name: ISTIO_DUAL_STACK, value: "true"}]
      securityContext: {runAsUser: 1337, runAsGroup: 1337}
`

var meshes = []mesh{
	{
		name: "istio", title: "Istio sidecar",
		base: pod{annotations: []string{quoted("sidecar.istio.io/status", `{"containers":["istio-proxy"]}`)}, proxy: istioProxy},
		settings: []setting{
			{"sidecar.istio.io/interceptionMode", "TPROXY"},
			{"status.sidecar.istio.io/port", "15020"},
			{"traffic.sidecar.istio.io/includeInboundPorts", "8080"},
			{"traffic.sidecar.istio.io/excludeInboundPorts", "9090"},
			{"traffic.sidecar.istio.io/includeOutboundIPRanges", "10.96.0.0/12"},
			{"traffic.sidecar.istio.io/excludeOutboundIPRanges", "198.51.100.0/24"},
			{"traffic.sidecar.istio.io/includeOutboundPorts", "443"},
			{"traffic.sidecar.istio.io/excludeOutboundPorts", "3306"},
			{"traffic.sidecar.istio.io/excludeInterfaces", "net1"},
			{"istio.io/reroute-virtual-interfaces", "vnet0"},
			{"traffic.sidecar.istio.io/kubevirtInterfaces", "vnet0"},
		},
	},
	{
		name: "ambient", title: "Istio ambient",
		base:      pod{labels: []string{"app: cart"}, proxy: "      readinessProbe: {httpGet: {port: 8080}}\n"},
		namespace: "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels: {istio.io/dataplane-mode: ambient}\n",
		settings: []setting{
			{"ambient.istio.io/bypass-inbound-capture", "true"},
			{"ambient.istio.io/dns-capture", "false"},
			{"istio.io/reroute-virtual-interfaces", "vnet0"},
		},
	},
	{
		name: "linkerd", title: "Linkerd",
		base: pod{
			annotations: []string{quoted("linkerd.io/proxy-version", "edge-25.1.1")},
			proxy:       "    - name: linkerd-proxy\n      securityContext: {runAsUser: 2102}\n",
		},
		settings: []setting{
			{"config.linkerd.io/skip-inbound-ports", "22,7000-9000"},
			{"config.linkerd.io/skip-outbound-ports", "3306"},
			{"config.linkerd.io/skip-subnets", "10.0.0.0/8"},
			{"config.linkerd.io/proxy-uid", "2103"},
			{"config.linkerd.io/proxy-gid", "2103"},
			{"config.linkerd.io/inbound-port", "14143"},
			{"config.linkerd.io/outbound-port", "14140"},
		},
	},
	{
		name: "kuma", title: "Kuma",
		base: pod{
			annotations: []string{quoted("kuma.io/sidecar-injected", "true")},
			proxy:       "    - name: kuma-sidecar\n      securityContext: {runAsUser: 5678}\n",
		},
		settings: []setting{
			{"traffic.kuma.io/transparent-proxy-config", "redirect:\n  inbound: {excludePorts: [22]}\n  dns: {enabled: true, captureAll: true}\n"},
			{"kuma.io/sidecar-uid", "5679"},
			{"kuma.io/transparent-proxying-ip-family-mode", "ipv4"},
			{"kuma.io/gateway", "enabled"},
			{"kuma.io/transparent-proxying-inbound-port", "25006"},
			{"kuma.io/transparent-proxying-outbound-port", "25001"},
			{"traffic.kuma.io/exclude-inbound-ports", "9090"},
			{"kuma.io/application-probe-proxy-port", "9001"},
			{"kuma.io/virtual-probes", "enabled"},
			{"kuma.io/virtual-probes-port", "19000"},
			{"traffic.kuma.io/exclude-inbound-ips", "10.0.0.0/8"},
			{"traffic.kuma.io/exclude-outbound-ports", "3306"},
			{"traffic.kuma.io/exclude-outbound-ports-for-uids", "tcp:22:1000-2000"},
			{"traffic.kuma.io/exclude-outbound-ips", "198.51.100.0/24"},
			{"kuma.io/builtin-dns", "enabled"},
			{"kuma.io/builtin-dns-port", "25053"},
			{"traffic.kuma.io/drop-invalid-packets", "true"},
			{"traffic.kuma.io/iptables-logs", "true"},
		},
	},
	{
		name: "consul", title: "Consul",
		base: pod{
			annotations: []string{
				quoted("consul.hashicorp.com/connect-inject-status", "injected"),
				quoted("consul.hashicorp.com/transparent-proxy-status", "enabled"),
			},
			proxy: "    - name: consul-dataplane\n      securityContext: {runAsUser: 5995}\n",
		},
		settings: []setting{
			{ConsulConfig, `{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ExcludeOutboundPorts": ["3306"]}`},
			{"consul.hashicorp.com/dual-stack", "true"},
			{"ProxyUserID", `"5996"`},
			{"ProxyInboundPort", "21000"},
			{"ProxyOutboundPort", "15101"},
			{"ExcludeInboundPorts", `["9090"]`},
			{"ExcludeOutboundPorts", `["3306"]`},
			{"ExcludeOutboundCIDRs", `["198.51.100.0/24"]`},
			{"ExcludeUIDs", `["1000-2000"]`},
			{"ConsulDNSIP", `"10.96.0.53"`},
			{"ConsulDNSPort", "8600"},
		},
	},
}

// also is what a setting needs: annotations beside its own, and the proxy's container in place of the usual.
var also = map[string]pod{
	"kuma.io/virtual-probes-port": {annotations: []string{quoted("kuma.io/virtual-probes", "enabled")}},
	"kuma.io/builtin-dns-port":    {annotations: []string{quoted("kuma.io/builtin-dns", "enabled")}},
	"kuma.io/sidecar-uid":         {proxy: "    - name: kuma-sidecar\n      securityContext: {runAsUser: 5679}\n"},
	"config.linkerd.io/proxy-uid": {proxy: "    - name: linkerd-proxy\n      securityContext: {runAsUser: 2103}\n"},
	"ProxyUserID":                 {proxy: "    - name: consul-dataplane\n      securityContext: {runAsUser: 5996}\n"},
	ConsulConfig:                  {annotations: []string{quoted("consul.hashicorp.com/dual-stack", "false")}},
	"consul.hashicorp.com/dual-stack": {
		annotations: []string{quoted(ConsulConfig, `{"ProxyUserID": "5995", "ProxyInboundPort": 20000}`)},
	},
}

// Examples lists the examples: pods of each mesh, captured and not, then one for each annotation of the tables in docs/dialects.
func Examples() []Example {
	all := pods()
	for _, m := range meshes {
		for _, s := range m.settings {
			all = append(all, m.setting(s))
		}
	}
	return all
}

func (m mesh) state(p pod) State {
	config, _ := json.Marshal(map[string]string{"dialect": m.name})
	return State{Pod: p.text(), Namespace: cmp.Or(m.namespace, Namespace), Config: config}
}

func (m mesh) setting(s setting) Example {
	p := m.base
	key, value, beside := s.key, s.value, also[s.key].annotations
	if !strings.Contains(key, "/") { // of Consul's JSON
		key, value, beside = ConsulConfig, consulConfig(key, value), also[ConsulConfig].annotations
	}
	p.annotations = append(slices.Concat(p.annotations, beside), quoted(key, value))
	p.proxy = cmp.Or(also[s.key].proxy, p.proxy)
	return Example{Group: m.title, Title: s.key, Key: s.key, State: m.state(p)}
}

// ConsulConfig is the annotation with Consul's settings, as JSON. Of the examples, those whose Key has no "/" are about a
// key of that.
const ConsulConfig = "consul.hashicorp.com/redirect-traffic-config"

// consulConfig is Consul's JSON with one more key.
func consulConfig(key, value string) string {
	keys := map[string]json.RawMessage{"ProxyUserID": json.RawMessage(`"5995"`), "ProxyInboundPort": json.RawMessage("20000")}
	keys[key] = json.RawMessage(value)
	b, _ := json.Marshal(keys)
	return string(b)
}

// Of returns the example of an annotation of a mesh; false if there is none.
func Of(dialect, key string) (Example, bool) {
	for _, m := range meshes {
		for _, s := range m.settings {
			if m.name == dialect && s.key == key {
				return m.setting(s), true
			}
		}
	}
	return Example{}, false
}

// anyMesh asks every mesh, for who does not know which one there is.
var anyMesh = json.RawMessage(`{"dialect":["istio","ambient","linkerd","kuma","consul"]}`)

// pods are the examples of whole pods.
func pods() []Example {
	istio := meshes[0].base
	none, hostNetwork, own, wrong, leaky := pod{labels: []string{"app: cart"}}, istio, istio, istio, istio
	hostNetwork.spec = "  hostNetwork: true\n"
	own.spec = "  initContainers:\n    - name: istio-init\n"
	wrong.annotations = append(slices.Clone(istio.annotations),
		quoted("traffic.sidecar.istio.io/excludeInboundPorts", "22,x"), quoted("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.0/33"))
	leaky.proxy = strings.Replace(istioProxy, `      env: [{name: ISTIO_DUAL_STACK, value: "true"}]`+"\n", "", 1)
	all := []Example{
		{Group: "Start here", Title: "A pod that no mesh knows of", State: State{Pod: none.text(), Namespace: Namespace, Config: anyMesh}},
		{Group: "Start here", Title: "A pod in an Istio mesh", State: State{Pod: istio.text(), Namespace: Namespace, Config: anyMesh}},
		{Group: "Start here", Title: "Settings that are wrong", State: State{Pod: wrong.text(), Namespace: Namespace, Config: anyMesh}},
		{Group: "Start here", Title: "IPv6 gets past the mesh", State: State{Pod: leaky.text(), Namespace: Namespace, Config: anyMesh}},
		{Group: "Start here", Title: "On the host's network", State: State{Pod: hostNetwork.text(), Namespace: Namespace, Config: anyMesh}},
		{Group: "Start here", Title: "An init container sets the rules", State: State{Pod: own.text(), Namespace: Namespace, Config: anyMesh}},
	}
	for _, m := range meshes {
		e := Example{Group: "One of each mesh", Title: m.title, State: m.state(m.base)}
		if m.name == "consul" { // whose settings are required
			e.State = m.setting(m.settings[0]).State
		}
		all = append(all, e)
	}
	return all
}
