package otherplugin

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	ambientOn = "AMBIENT_ENABLED"
	owned     = "ISTIO_OWNED_CNI_CONFIG"
	chained   = "CHAINED_CNI_PLUGIN"
	ownName   = "a list of one's own has another name here; the other's file must be gone, since it sorts beside ours"
)

// ambient is for what counts in ambient mode only.
func ambient(path string, read func(string) (any, error)) Translate {
	return With(ambientOn, "ambient mode is off", Keep(path, read))
}

// istioCNI has the variables, flags and volumes of the istio-cni chart (manifests/charts/istio-cni), and those variables that its agent reads
// besides (cni/pkg/constants, cni/pkg/config).
var istioCNI = Plugin{
	Mesh: "istio",
	Type: "istio-cni",
	DaemonSet: []Mark{
		{Labels: map[string]string{"k8s-app": "istio-cni-node"}}, {Labels: map[string]string{"app.kubernetes.io/name": "istio-cni"}}, {ConfigMap: "istio-cni-config"},
	},
	Remove: []string{
		"Remove the other: helm uninstall istio-cni (or components.cni.enabled=false). Its agents take their entry and their binary out. Leave pilot.cni.enabled=true: it tells the injector that there is a plugin.",
	},
	Settings: map[string]Translate{
		"EXCLUDE_NAMESPACES":  Keep("excludeNamespaces", Words),
		"EXCLUDED_NAMESPACES": Keep("excludeNamespaces", Words), // the older name

		ambientOn: func(value string, said map[string]string) Outcome {
			o := Keep("ambient.enabled", Truth)(value, said)
			if o.Value == true {
				o.OnNode = "ambient"
			}
			return o
		},
		"AMBIENT_ENABLEMENT_SELECTOR": ambient("ambient.enablementSelectors", selectors),
		"AMBIENT_DNS_CAPTURE":         ambient("ambient.dnsCapture", Truth),
		"AMBIENT_IPV6":                ambient("ambient.ipv6", Truth),
		"HOST_PROBE_SNAT_IP":          ambient("ambient.probeIPv4", addr(netip.Addr.Is4)),
		"HOST_PROBE_SNAT_IPV6":        ambient("ambient.probeIPv6", addr(netip.Addr.Is6)),
		"ZTUNNEL_UDS_ADDRESS":         ambient("ambient.zdsSocket", Path),
		"volume cni-ztunnel-sock-dir": func(value string, said map[string]string) Outcome {
			if _, ok := said["ZTUNNEL_UDS_ADDRESS"]; ok && Is(said[ambientOn]) {
				return Outcome{Needless: "ZTUNNEL_UDS_ADDRESS says the socket"}
			}
			return ambient("ambient.zdsSocket", Path)(strings.TrimSuffix(value, "/")+"/ztunnel.sock", said)
		},
		"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": Needless("rules of running pods are looked at every ambient.verifyInterval here"),
		"ENABLE_AMBIENT_DETECTION_RETRY":         Needless("a pod that cannot be read is asked for again, and then does not start"),

		"CNI_CONF_NAME":                   ConfName(chained, owned),
		chained:                           Chained,
		owned:                             Keep("cni.ownFile", Truth),
		"ISTIO_OWNED_CNI_CONF_FILENAME":   Unless("the name is ours", ownName, false, ""),
		"ISTIO_OWNED_CNI_CONFIG_FILENAME": Unless("the name is ours", ownName, false, ""),
		"volume cni-bin-dir":              Keep("cni.binDirs", Paths),
		"volume cni-net-dir":              Keep("cni.confDir", Path),
		"volume cni-socket-dir":           Needless("the agent has a directory of its own: cni.runDir"),
		"volume cni-netns-dir":            Needless("network namespaces are found without it"),
		"volume cni-host-procfs":          Needless("repair.mode and ambient.enabled give what it takes"),
		"CNI_NET_DIR":                     Keep("cni.confDir", Path),
		"MOUNTED_CNI_NET_DIR":             Needless(Bookkeeping),
		"KUBERNETES_SERVICE_HOST":         Keep("apiServer.host", Text),
		"KUBERNETES_SERVICE_PORT":         Keep("apiServer.port", Text),
		"KUBERNETES_SERVICE_PROTOCOL":     Keep("apiServer.protocol", Text),

		"REPAIR_ENABLED":     repairMode,
		"REPAIR_REPAIR_PODS": PartOf("REPAIR_ENABLED"),
		"REPAIR_DELETE_PODS": PartOf("REPAIR_ENABLED"),
		"REPAIR_LABEL_PODS":  PartOf("REPAIR_ENABLED"),
		"REPAIR_BROKEN_POD_LABEL_KEY": func(value string, said map[string]string) Outcome {
			key, err := Text(value)
			if err != nil {
				return Outcome{Err: err}
			}
			return Outcome{Path: "repair.label", Value: fmt.Sprint(key, "=", said["REPAIR_BROKEN_POD_LABEL_VALUE"])}
		},
		"REPAIR_BROKEN_POD_LABEL_VALUE":             PartOf("REPAIR_BROKEN_POD_LABEL_KEY"),
		"REPAIR_INIT_CONTAINER_NAME":                Keep("repair.initContainer", Text),
		"REPAIR_INIT_CONTAINER_EXIT_CODE":           Keep("repair.exitCodes", exitCodes),
		"REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE": Optional(Keep("repair.message", Text)),
		"REPAIR_SIDECAR_ANNOTATION":                 Keep("repair.annotation", Text),
		"REPAIR_LABEL_SELECTORS":                    Optional(Keep("repair.labelSelector", Text)),
		"REPAIR_FIELD_SELECTORS":                    Optional(Keep("repair.fieldSelector", Text)),
		"REPAIR_RUN_AS_DAEMON":                      Needless("repair is part of the agent"),

		"NATIVE_NFTABLES": func(value string, _ map[string]string) Outcome {
			switch on, err := Truth(value); {
			case err != nil:
				return Outcome{Err: err}
			case on == true:
				return Outcome{Path: "backend", Value: "nftables"}
			}
			return Outcome{Needless: "backend auto takes iptables where the host has it"}
		},
		"FORCE_IPTABLES_BINARY":   OneOf("backend", map[string]string{"nft": "iptables-nft", "legacy": "iptables-legacy"}, "", "it is neither nft nor legacy"),
		"--log_output_level":      Keep("logLevel", level),
		"LOG_LEVEL":               Keep("logLevel", level),
		"--log_as_json":           Needless("logs are JSON"),
		"ALLOW_SWITCH_TO_HOST_NS": Needless("it is for the other's own agent"),
		"CURRENT_AGENT_VERSION":   Needless(Bookkeeping),
		"GODEBUG":                 Needless(Bookkeeping),
	},
}

// repairMode: of several actions the other plugin takes the first of repair, delete, label.
func repairMode(value string, said map[string]string) Outcome {
	on, err := Truth(value)
	switch {
	case err != nil:
		return Outcome{Err: err}
	case on == true:
		for _, mode := range []string{"repair", "delete", "label"} {
			if Is(said["REPAIR_"+strings.ToUpper(mode)+"_PODS"]) {
				return Outcome{Path: "repair.mode", Value: mode}
			}
		}
	}
	return Outcome{Path: "repair.mode", Value: "none"}
}

// level reads "info" and "default:info,cni:debug", of which the default counts.
func level(v string) (any, error) {
	for part := range strings.SplitSeq(v, ",") {
		scope, l, scoped := strings.Cut(strings.TrimSpace(part), ":")
		if !scoped {
			return Level(scope)
		}
		if scope == "default" || scope == "all" {
			return Level(l)
		}
	}
	return Level("of no scope")
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
