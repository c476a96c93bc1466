// Package istiofacts has the facts of Istio that its rules do not need: see [mesh.Facts]. [Flags] are those of its init container's program.
package istiofacts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

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
			Annotations: map[string]string{
				istio.StatusAnnotation:    `{"containers":["istio-proxy"]}`,
				istio.ExcludeInboundPorts: fmt.Sprint(mesh.ExcludedPort), istio.ExcludeOutboundPorts: fmt.Sprint(mesh.ExcludedPort),
			},
			Env: []corev1.EnvVar{{Name: istio.DualStack, Value: "true"}},
		},
		Init:   &mesh.Init{Commands: []string{"istio-iptables"}, Flags: append(Flags(), others...), Redirect: written},
		Plugin: plugin, PluginTypes: []string{plugin.Type}, Deliberate: deliberate,
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

const (
	ambientOn = "AMBIENT_ENABLED"
	owned     = "ISTIO_OWNED_CNI_CONFIG"
	chained   = "CHAINED_CNI_PLUGIN"
	ownName   = "a list of one's own has another name here; the other's file must be gone, since it sorts beside ours"
)

// ambient is for what counts in ambient mode only.
func ambient(path string, read func(string) (any, error)) mesh.Translate {
	return mesh.With(ambientOn, "ambient mode is off", mesh.Keep(path, read))
}

// plugin has the variables, flags and volumes of the istio-cni chart (manifests/charts/istio-cni), and those variables that its agent reads
// besides (cni/pkg/constants, cni/pkg/config).
var plugin = &mesh.Plugin{
	Type: "istio-cni",
	DaemonSet: []mesh.Mark{
		{Labels: map[string]string{"k8s-app": "istio-cni-node"}}, {Labels: map[string]string{"app.kubernetes.io/name": "istio-cni"}}, {ConfigMap: "istio-cni-config"},
	},
	Remove: []string{
		"Remove the other: helm uninstall istio-cni (or components.cni.enabled=false). Its agents take their entry and their binary out. Leave pilot.cni.enabled=true: it tells the injector that there is a plugin.",
	},
	Settings: map[string]mesh.Translate{
		"EXCLUDE_NAMESPACES":  mesh.Keep("excludeNamespaces", mesh.Words),
		"EXCLUDED_NAMESPACES": mesh.Keep("excludeNamespaces", mesh.Words), // the older name

		ambientOn: func(value string, said map[string]string) mesh.Outcome {
			o := mesh.Keep("ambient.enabled", mesh.Truth)(value, said)
			if o.Value == true {
				o.OnNode = "ambient"
			}
			return o
		},
		"AMBIENT_ENABLEMENT_SELECTOR": ambient("ambient.enablementSelectors", selectors),
		"AMBIENT_DNS_CAPTURE":         ambient("ambient.dnsCapture", mesh.Truth),
		"AMBIENT_IPV6":                ambient("ambient.ipv6", mesh.Truth),
		"HOST_PROBE_SNAT_IP":          ambient("ambient.probeIPv4", addr(netip.Addr.Is4)),
		"HOST_PROBE_SNAT_IPV6":        ambient("ambient.probeIPv6", addr(netip.Addr.Is6)),
		"ZTUNNEL_UDS_ADDRESS":         ambient("ambient.zdsSocket", mesh.Path),
		"volume cni-ztunnel-sock-dir": func(value string, said map[string]string) mesh.Outcome {
			if _, ok := said["ZTUNNEL_UDS_ADDRESS"]; ok && mesh.Is(said[ambientOn]) {
				return mesh.Outcome{Needless: "ZTUNNEL_UDS_ADDRESS says the socket"}
			}
			return ambient("ambient.zdsSocket", mesh.Path)(strings.TrimSuffix(value, "/")+"/ztunnel.sock", said)
		},
		"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": mesh.Needless("rules of running pods are looked at every ambient.verifyInterval here"),
		"ENABLE_AMBIENT_DETECTION_RETRY":         mesh.Needless("a pod that cannot be read is asked for again, and then does not start"),

		"CNI_CONF_NAME":                   mesh.ConfName(chained, owned),
		chained:                           mesh.Chained,
		owned:                             mesh.Keep("cni.ownFile", mesh.Truth),
		"ISTIO_OWNED_CNI_CONF_FILENAME":   mesh.Unless("the name is ours", ownName, false, ""),
		"ISTIO_OWNED_CNI_CONFIG_FILENAME": mesh.Unless("the name is ours", ownName, false, ""),
		"volume cni-bin-dir":              mesh.Keep("cni.binDirs", mesh.Paths),
		"volume cni-net-dir":              mesh.Keep("cni.confDir", mesh.Path),
		"volume cni-socket-dir":           mesh.Needless("the agent has a directory of its own: cni.runDir"),
		"volume cni-netns-dir":            mesh.Needless("network namespaces are found without it"),
		"volume cni-host-procfs":          mesh.Needless("repair.mode and ambient.enabled give what it takes"),
		"CNI_NET_DIR":                     mesh.Keep("cni.confDir", mesh.Path),
		"MOUNTED_CNI_NET_DIR":             mesh.Needless(mesh.Bookkeeping),
		"KUBERNETES_SERVICE_HOST":         mesh.Keep("apiServer.host", mesh.Text),
		"KUBERNETES_SERVICE_PORT":         mesh.Keep("apiServer.port", mesh.Text),
		"KUBERNETES_SERVICE_PROTOCOL":     mesh.Keep("apiServer.protocol", mesh.Text),

		"REPAIR_ENABLED":     repairMode,
		"REPAIR_REPAIR_PODS": mesh.PartOf("REPAIR_ENABLED"),
		"REPAIR_DELETE_PODS": mesh.PartOf("REPAIR_ENABLED"),
		"REPAIR_LABEL_PODS":  mesh.PartOf("REPAIR_ENABLED"),
		"REPAIR_BROKEN_POD_LABEL_KEY": func(value string, said map[string]string) mesh.Outcome {
			key, err := mesh.Text(value)
			if err != nil {
				return mesh.Outcome{Err: err}
			}
			return mesh.Outcome{Path: "repair.label", Value: fmt.Sprint(key, "=", said["REPAIR_BROKEN_POD_LABEL_VALUE"])}
		},
		"REPAIR_BROKEN_POD_LABEL_VALUE":             mesh.PartOf("REPAIR_BROKEN_POD_LABEL_KEY"),
		"REPAIR_INIT_CONTAINER_NAME":                mesh.Keep("repair.initContainer", mesh.Text),
		"REPAIR_INIT_CONTAINER_EXIT_CODE":           mesh.Keep("repair.exitCodes", exitCodes),
		"REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE": mesh.Optional(mesh.Keep("repair.message", mesh.Text)),
		"REPAIR_SIDECAR_ANNOTATION":                 mesh.Keep("repair.annotation", mesh.Text),
		"REPAIR_LABEL_SELECTORS":                    mesh.Optional(mesh.Keep("repair.labelSelector", mesh.Text)),
		"REPAIR_FIELD_SELECTORS":                    mesh.Optional(mesh.Keep("repair.fieldSelector", mesh.Text)),
		"REPAIR_RUN_AS_DAEMON":                      mesh.Needless("repair is part of the agent"),

		"NATIVE_NFTABLES": func(value string, _ map[string]string) mesh.Outcome {
			switch on, err := mesh.Truth(value); {
			case err != nil:
				return mesh.Outcome{Err: err}
			case on == true:
				return mesh.Outcome{Path: "backend", Value: "nftables"}
			}
			return mesh.Outcome{Needless: "backend auto takes iptables where the host has it"}
		},
		"FORCE_IPTABLES_BINARY":   mesh.OneOf("backend", map[string]string{"nft": "iptables-nft", "legacy": "iptables-legacy"}, "", "it is neither nft nor legacy"),
		"--log_output_level":      mesh.Keep("logLevel", level),
		"LOG_LEVEL":               mesh.Keep("logLevel", level),
		"--log_as_json":           mesh.Needless("logs are JSON"),
		"ALLOW_SWITCH_TO_HOST_NS": mesh.Needless("it is for the other's own agent"),
		"CURRENT_AGENT_VERSION":   mesh.Needless(mesh.Bookkeeping),
		"GODEBUG":                 mesh.Needless(mesh.Bookkeeping),
	},
}

// repairMode: of several actions the other plugin takes the first of repair, delete, label.
func repairMode(value string, said map[string]string) mesh.Outcome {
	on, err := mesh.Truth(value)
	switch {
	case err != nil:
		return mesh.Outcome{Err: err}
	case on == true:
		for _, mode := range []string{"repair", "delete", "label"} {
			if mesh.Is(said["REPAIR_"+strings.ToUpper(mode)+"_PODS"]) {
				return mesh.Outcome{Path: "repair.mode", Value: mode}
			}
		}
	}
	return mesh.Outcome{Path: "repair.mode", Value: "none"}
}

// level reads "info" and "default:info,cni:debug", of which the default counts.
func level(v string) (any, error) {
	for part := range strings.SplitSeq(v, ",") {
		scope, l, scoped := strings.Cut(strings.TrimSpace(part), ":")
		if !scoped {
			return mesh.Level(scope)
		}
		if scope == "default" || scope == "all" {
			return mesh.Level(l)
		}
	}
	return mesh.Level("of no scope")
}

func addr(family func(netip.Addr) bool) func(string) (any, error) {
	return func(v string) (any, error) {
		a, err := netip.ParseAddr(strings.TrimSpace(v))
		if err != nil || !family(a) || a.Zone() != "" {
			return nil, errors.New("it is no address of that family")
		}
		return a.String(), nil
	}
}

func exitCodes(v string) (any, error) {
	var n int
	if err := yaml.UnmarshalStrict([]byte(v), &n); err != nil || n < 1 || n > 255 {
		return nil, errors.New("it is no exit code from 1 to 255")
	}
	return []any{n}, nil
}

// selectors reads the list that the other's chart writes as YAML.
func selectors(v string) (any, error) {
	var list []struct {
		PodSelector       metav1.LabelSelector `json:"podSelector,omitzero"`
		NamespaceSelector metav1.LabelSelector `json:"namespaceSelector,omitzero"`
	}
	if err := yaml.UnmarshalStrict([]byte(v), &list); err != nil {
		return nil, err
	}
	all := []any{}
	for _, s := range list {
		for _, each := range []metav1.LabelSelector{s.PodSelector, s.NamespaceSelector} {
			if _, err := metav1.LabelSelectorAsSelector(&each); err != nil {
				return nil, err
			}
		}
		all = append(all, s)
	}
	return all, nil
}
