package migration

import (
	"errors"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// istioRules are the variables, flags and volumes of the istio-cni chart (manifests/charts/istio-cni), and those variables that its
// agent reads besides (cni/pkg/constants, cni/pkg/config).
var istioRules = map[string]rule{
	"EXCLUDE_NAMESPACES":  to("excludeNamespaces", list),
	"EXCLUDED_NAMESPACES": to("excludeNamespaces", list), // the older name

	"AMBIENT_ENABLED":                        to("ambient.enabled", truth),
	"AMBIENT_ENABLEMENT_SELECTOR":            ambient(to("ambient.enablementSelectors", selectors)),
	"AMBIENT_DNS_CAPTURE":                    ambient(to("ambient.dnsCapture", truth)),
	"AMBIENT_IPV6":                           ambient(to("ambient.ipv6", truth)),
	"HOST_PROBE_SNAT_IP":                     ambient(to("ambient.probeIPv4", addr(netip.Addr.Is4))),
	"HOST_PROBE_SNAT_IPV6":                   ambient(to("ambient.probeIPv6", addr(netip.Addr.Is6))),
	"ZTUNNEL_UDS_ADDRESS":                    ambient(to("ambient.zdsSocket", path)),
	"volume cni-ztunnel-sock-dir":            ambient(ztunnel),
	"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": needless("rules of running pods are looked at every ambient.verifyInterval here"),
	"ENABLE_AMBIENT_DETECTION_RETRY":         needless("a pod that cannot be read is asked for again, and then does not start"),

	"CNI_CONF_NAME":                   istioConfName,
	"CHAINED_CNI_PLUGIN":              chained,
	"ISTIO_OWNED_CNI_CONFIG":          to("cni.ownFile", truth),
	"ISTIO_OWNED_CNI_CONF_FILENAME":   unless("the name is ours", "a list of one's own has another name here; the other's file must be gone, since it sorts beside ours", false, ""),
	"ISTIO_OWNED_CNI_CONFIG_FILENAME": unless("the name is ours", "a list of one's own has another name here; the other's file must be gone, since it sorts beside ours", false, ""),
	"volume cni-bin-dir":              to("cni.binDirs", paths),
	"volume cni-net-dir":              to("cni.confDir", path),
	"volume cni-socket-dir":           needless("the agent has a directory of its own: cni.runDir"),
	"volume cni-netns-dir":            needless("network namespaces are found without it"),
	"volume cni-host-procfs":          needless("repair.mode and ambient.enabled give what it takes"),
	"CNI_NET_DIR":                     to("cni.confDir", path),
	"MOUNTED_CNI_NET_DIR":             needless(bookkeeping),
	"KUBERNETES_SERVICE_HOST":         to("apiServer.host", text),
	"KUBERNETES_SERVICE_PORT":         to("apiServer.port", text),
	"KUBERNETES_SERVICE_PROTOCOL":     to("apiServer.protocol", text),

	"REPAIR_ENABLED":                            repairMode,
	"REPAIR_REPAIR_PODS":                        partOf("REPAIR_ENABLED"),
	"REPAIR_DELETE_PODS":                        partOf("REPAIR_ENABLED"),
	"REPAIR_LABEL_PODS":                         partOf("REPAIR_ENABLED"),
	"REPAIR_BROKEN_POD_LABEL_KEY":               repairLabel,
	"REPAIR_BROKEN_POD_LABEL_VALUE":             partOf("REPAIR_BROKEN_POD_LABEL_KEY"),
	"REPAIR_INIT_CONTAINER_NAME":                to("repair.initContainer", text),
	"REPAIR_INIT_CONTAINER_EXIT_CODE":           to("repair.exitCodes", exitCodes),
	"REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE": optional("repair.message"),
	"REPAIR_SIDECAR_ANNOTATION":                 to("repair.annotation", text),
	"REPAIR_LABEL_SELECTORS":                    optional("repair.labelSelector"),
	"REPAIR_FIELD_SELECTORS":                    optional("repair.fieldSelector"),
	"REPAIR_RUN_AS_DAEMON":                      needless("repair is part of the agent"),

	"NATIVE_NFTABLES":         istioNative,
	"FORCE_IPTABLES_BINARY":   to("backend", iptablesBinary),
	"--log_output_level":      to("logLevel", istioLevel),
	"LOG_LEVEL":               to("logLevel", istioLevel),
	"--log_as_json":           needless("logs are JSON"),
	"ALLOW_SWITCH_TO_HOST_NS": needless("it is for the other's own agent"),
	"CURRENT_AGENT_VERSION":   needless(bookkeeping),
	"GODEBUG":                 needless(bookkeeping),
}

// common are the settings that all DaemonSets have.
var common = map[string]rule{"nodeSelector": to("nodeSelector", object), "affinity": to("affinity", object)}

// ambient leaves a setting alone where ambient mode is off.
func ambient(r rule) rule {
	return func(b *builder, s Setting) {
		if !is(b.said["AMBIENT_ENABLED"].Value) {
			b.needless(s, "ambient mode is off")
			return
		}
		r(b, s)
	}
}

func ztunnel(b *builder, s Setting) {
	if _, ok := b.said["ZTUNNEL_UDS_ADDRESS"]; ok {
		b.needless(s, "ZTUNNEL_UDS_ADDRESS says the socket")
		return
	}
	to("ambient.zdsSocket", func(v string) (any, error) {
		_, err := path(v)
		return strings.TrimSuffix(v, "/") + "/ztunnel.sock", err
	})(b, s)
}

// partOf is for settings that another one reads.
func partOf(other string) rule {
	return func(b *builder, s Setting) {
		if _, ok := b.said[other]; ok {
			b.needless(s, "part of "+other)
		} else {
			b.undone(s, "does nothing without "+other+", which is not set: see what the other's default means to you", false)
		}
	}
}

func optional(path string) rule {
	return func(b *builder, s Setting) {
		if strings.TrimSpace(s.Value) == "" {
			b.needless(s, "it is empty, as here by default")
		} else {
			to(path, text)(b, s)
		}
	}
}

// repairMode: of several actions the other plugin takes the first of repair, delete, label.
func repairMode(b *builder, s Setting) {
	on, err := truth(s.Value)
	if err != nil {
		b.wrong(s, err)
		return
	}
	mode := "none"
	for _, m := range []struct{ key, mode string }{{"REPAIR_REPAIR_PODS", "repair"}, {"REPAIR_DELETE_PODS", "delete"}, {"REPAIR_LABEL_PODS", "label"}} {
		if on == true && is(b.said[m.key].Value) {
			mode = m.mode
			break
		}
	}
	b.keep(s, "repair.mode", mode)
}

func repairLabel(b *builder, s Setting) {
	if strings.TrimSpace(s.Value) == "" {
		b.wrong(s, errEmpty)
		return
	}
	b.keep(s, "repair.label", s.Value+"="+b.said["REPAIR_BROKEN_POD_LABEL_VALUE"].Value)
}

// chained: without it pods ask Multus for the plugin by its name, which is another here.
func chained(b *builder, s Setting) {
	on, err := truth(s.Value)
	if err != nil {
		b.wrong(s, err)
		return
	}
	b.keep(s, "cni.chained", on)
	if on == false {
		b.set("networkAttachmentDefinition.enabled", true)
		b.steps = append(b.steps, "Pods ask Multus for the other plugin by the annotation k8s.v1.cni.cncf.io/networks, which the injector writes: tell it to write default/meshcni.")
	}
}

func istioConfName(b *builder, s Setting) {
	owned := is(b.said["ISTIO_OWNED_CNI_CONFIG"].Value)
	confName(owned)(b, s)
}

// confName is the network's file where the plugin is chained into it; else it is the plugin's own, and must not be ours.
func confName(owned bool) rule {
	return func(b *builder, s Setting) {
		c, said := b.said["CHAINED_CNI_PLUGIN"]
		switch {
		case strings.TrimSpace(s.Value) == "":
			b.needless(s, "it is empty, as here by default")
		case owned, said && !is(c.Value):
			b.needless(s, "the other's own file, which ours must not have; remove it if its uninstall leaves it")
		default:
			b.keep(s, "cni.confName", s.Value)
		}
	}
}

func istioNative(b *builder, s Setting) {
	on, err := truth(s.Value)
	switch {
	case err != nil:
		b.wrong(s, err)
	case on == true:
		b.keep(s, "backend", "nftables")
	default:
		b.needless(s, "backend auto takes iptables where the host has it")
	}
}

func iptablesBinary(v string) (any, error) {
	switch strings.TrimSpace(v) {
	case "nft":
		return "iptables-nft", nil
	case "legacy":
		return "iptables-legacy", nil
	}
	return nil, errors.New("it is neither nft nor legacy")
}

// istioLevel reads "info" and "default:info,cni:debug", of which the default counts.
func istioLevel(v string) (any, error) {
	for part := range strings.SplitSeq(v, ",") {
		scope, l, scoped := strings.Cut(strings.TrimSpace(part), ":")
		if !scoped {
			return level(scope)
		}
		if scope == "default" || scope == "all" {
			return level(l)
		}
	}
	return nil, errLevel
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

func object(v string) (any, error) {
	var m map[string]any
	return m, yaml.UnmarshalStrict([]byte(v), &m)
}
