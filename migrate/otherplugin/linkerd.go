package otherplugin

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/facts/linkerdfacts"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// linkerdCNI has the variables and volumes of linkerd2-cni's chart (charts/linkerd2-cni), and the keys of its network configuration
// (linkerd2-proxy-init, cni-plugin).
var linkerdCNI = Plugin{
	Mesh: "linkerd",
	Type: "linkerd-cni",
	DaemonSet: []Mark{
		{Labels: map[string]string{"k8s-app": "linkerd-cni"}}, {Labels: map[string]string{"linkerd.io/cni-resource": "true"}}, {ConfigMap: "linkerd-cni-config"},
	},
	Settings: map[string]Translate{
		"DEST_CNI_NET_DIR":                 Keep("cni.confDir", Path),
		"DEST_CNI_BIN_DIR":                 Keep("cni.binDirs", Paths),
		"volume cni-bin-dir":               Needless("DEST_CNI_BIN_DIR says it"),
		"volume cni-net-dir":               Needless("DEST_CNI_NET_DIR says it"),
		"SLEEP":                            Needless(StartWay),
		"name":                             Needless(Bookkeeping),
		"type":                             Needless(Bookkeeping),
		"cniVersion":                       Needless(ListCounts),
		"log_level":                        Keep("logLevel", Level),
		"policy.type":                      Needless(Bookkeeping),
		"policy.k8s_api_root":              Needless(Bookkeeping),
		"policy.k8s_auth_token":            Needless(Bookkeeping),
		"kubernetes.kubeconfig":            Needless(Bookkeeping),
		"linkerd.use-wait-flag":            Needless("nobody else's lock is waited for"),
		"linkerd.iptables-mode":            OneOf("backend", map[string]string{"nft": "iptables-nft", "legacy": "iptables-legacy", "": "", "plain": ""}, "backend auto finds the host's", "it is none of nft, legacy and plain"),
		"linkerd.simulate":                 Unless("rules are written", "the other writes no rules at all: the mesh does not get these pods' traffic today", true, "false"),
		"linkerd.ipv6":                     changes("ipv6", "", "here IPv6 is captured if the pod's proxy listens on it, which the injector decides; with uncapturedFamily its bypass can be closed"),
		"linkerd.proxy-uid":                changes("proxy-uid", linkerd.ProxyUID, "pods whose proxy container says no user are taken to run it as 2102 here: set config.linkerd.io/proxy-uid on their namespaces"),
		"linkerd.proxy-gid":                changes("proxy-gid", linkerd.ProxyGID, "set config.linkerd.io/proxy-gid on the namespaces"),
		"linkerd.incoming-proxy-port":      changes("incoming-proxy-port", linkerd.InboundPort, "the port comes from the pod's proxy here; set config.linkerd.io/inbound-port on the namespaces if the proxy does not say it"),
		"linkerd.outgoing-proxy-port":      changes("outgoing-proxy-port", linkerd.OutboundPort, "the port comes from the pod's proxy here; set config.linkerd.io/outbound-port on the namespaces if the proxy does not say it"),
		"linkerd.ports-to-redirect":        changes("ports-to-redirect", "", "here all inbound ports are redirected; skip the others by config.linkerd.io/skip-inbound-ports on the namespaces"),
		"linkerd.inbound-ports-to-ignore":  changes("inbound-ports-to-ignore", "", "set config.linkerd.io/skip-inbound-ports on the namespaces"),
		"linkerd.outbound-ports-to-ignore": changes("outbound-ports-to-ignore", linkerd.SkipOutboundPorts, "set config.linkerd.io/skip-outbound-ports on the namespaces"),
		"linkerd.subnets-to-ignore":        changes("subnets-to-ignore", linkerd.SkipSubnets, "set config.linkerd.io/skip-subnets on the namespaces"),
		"container repair-controller": func(string, map[string]string) Outcome {
			return Outcome{Path: "repair.mode", Value: "delete"}
		},
	},
	Remove: []string{
		"Remove the other: helm uninstall linkerd2-cni. Its agents take their entry and their binary out. Leave cniEnabled=true: it tells the injector that there is a plugin.",
	},
}

// changes is for settings that change the rules of all pods, unless they say what is the default here too. The plugin has them as proxy-init
// has its flags, with lists as JSON, and an annotation of the pod or its namespace counts before. Inbound ports that it ignores add to the
// annotation's.
func changes(name, annotation, do string) Translate {
	flags := linkerdfacts.Flags()
	f := flags[slices.IndexFunc(flags, func(f mesh.Flag) bool { return f.Name == name })]
	return func(value string, _ map[string]string) Outcome {
		apply := func(r *redirect.Redirect) error {
			value, already := value, r.Inbound.ExcludePorts
			if f.List {
				var all []any
				if err := json.Unmarshal([]byte(value), &all); err != nil {
					return err
				}
				list := make([]string, len(all))
				for i := range all {
					list[i] = strings.TrimSpace(fmt.Sprint(all[i]))
				}
				value = strings.Join(list, ",")
			}
			err := f.Apply(r, value)
			r.Inbound.ExcludePorts = r.Inbound.ExcludePorts.Union(already)
			return err
		}
		r := linkerd.DefaultRedirect()
		switch err := apply(&r); {
		case err != nil:
			return Outcome{Err: err}
		case reflect.DeepEqual(r, linkerd.DefaultRedirect()):
			return Outcome{Needless: "the default here too"}
		}
		return Outcome{Undone: do, Rules: true, Change: apply, Annotation: annotation}
	}
}
