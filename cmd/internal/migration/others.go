package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect"
)

// kumaRules are the variables and volumes of Kuma's chart (deployments/charts/kuma), and the keys of its network configuration.
var kumaRules = map[string]rule{
	"kubernetes.exclude_namespaces": to("excludeNamespaces", names),
	"kubernetes.cni_bin_dir":        needless("volume cni-bin-dir says it"),
	"kubernetes.kubeconfig":         needless(bookkeeping),
	"kubernetes.k8s_api_root":       needless(bookkeeping),
	"log_level":                     to("logLevel", level),
	"CNI_LOG_LEVEL":                 needless("log_level says it"),
	"cniVersion":                    needless("the list's counts"),
	"name":                          needless(bookkeeping),
	"type":                          needless(bookkeeping),
	"CNI_CONF_NAME":                 func(b *builder, s Setting) { confName(false)(b, s) },
	"CNI_NET_DIR":                   needless("volume cni-net-dir says it"),
	"CHAINED_CNI_PLUGIN":            chained,
	"volume cni-bin-dir":            to("cni.binDirs", paths),
	"volume cni-net-dir":            to("cni.confDir", path),
	"command":                       needless(startWay),
}

// consulRules are the flags and volumes of Consul's chart (charts/consul), and those that install-cni has besides
// (control-plane/subcommand/install-cni).
var consulRules = map[string]rule{
	"--log-level":        to("logLevel", level),
	"--log-json":         needless("logs are JSON"),
	"--cni-bin-dir":      to("cni.binDirs", paths),
	"--cni-net-dir":      to("cni.confDir", path),
	"volume cni-bin-dir": needless("--cni-bin-dir says it"),
	"volume cni-net-dir": needless("--cni-net-dir says it"),
	"--bin-source-dir":   needless(bookkeeping),
	"--kubeconfig":       needless(bookkeeping),
	"--autorotate-token": needless("the agent renews the plugin's token"),
	"--cni-token-path":   needless(bookkeeping),
	"--multus": func(b *builder, s Setting) {
		on, err := truth(s.Value)
		if err != nil {
			b.wrong(s, err)
			return
		}
		s.Value = fmt.Sprint(on != true) // the chart asks it the other way round
		chained(b, s)
	},
}

// linkerdSettings are the variables and volumes of linkerd2-cni's chart (charts/linkerd2-cni), and the keys of its network
// configuration (linkerd2-proxy-init, cni-plugin).
var linkerdSettings = map[string]rule{
	"DEST_CNI_NET_DIR":                 to("cni.confDir", path),
	"DEST_CNI_BIN_DIR":                 to("cni.binDirs", paths),
	"volume cni-bin-dir":               needless("DEST_CNI_BIN_DIR says it"),
	"volume cni-net-dir":               needless("DEST_CNI_NET_DIR says it"),
	"SLEEP":                            needless(startWay),
	"name":                             needless(bookkeeping),
	"type":                             needless(bookkeeping),
	"cniVersion":                       needless("the list's counts"),
	"log_level":                        to("logLevel", level),
	"policy.type":                      needless(bookkeeping),
	"policy.k8s_api_root":              needless(bookkeeping),
	"policy.k8s_auth_token":            needless(bookkeeping),
	"kubernetes.kubeconfig":            needless(bookkeeping),
	"linkerd.use-wait-flag":            needless("nobody else's lock is waited for"),
	"linkerd.iptables-mode":            linkerdMode,
	"linkerd.simulate":                 unless("rules are written", "the other writes no rules at all: the mesh does not get these pods' traffic today", true, "false"),
	"linkerd.ipv6":                     changing("", "here IPv6 is captured if the pod's proxy listens on it, which the injector decides; with uncapturedFamily its bypass can be closed"),
	"linkerd.proxy-uid":                changing("config.linkerd.io/proxy-uid", "pods whose proxy container says no user are taken to run it as 2102 here: set config.linkerd.io/proxy-uid on their namespaces"),
	"linkerd.proxy-gid":                changing("config.linkerd.io/proxy-gid", "set config.linkerd.io/proxy-gid on the namespaces"),
	"linkerd.incoming-proxy-port":      changing("config.linkerd.io/inbound-port", "the port comes from the pod's proxy here; set config.linkerd.io/inbound-port on the namespaces if the proxy does not say it"),
	"linkerd.outgoing-proxy-port":      changing("config.linkerd.io/outbound-port", "the port comes from the pod's proxy here; set config.linkerd.io/outbound-port on the namespaces if the proxy does not say it"),
	"linkerd.ports-to-redirect":        changing("", "here all inbound ports are redirected; skip the others by config.linkerd.io/skip-inbound-ports on the namespaces"),
	"linkerd.inbound-ports-to-ignore":  changing("", "set config.linkerd.io/skip-inbound-ports on the namespaces"),
	"linkerd.outbound-ports-to-ignore": changing("config.linkerd.io/skip-outbound-ports", "set config.linkerd.io/skip-outbound-ports on the namespaces"),
	"linkerd.subnets-to-ignore":        changing("config.linkerd.io/skip-subnets", "set config.linkerd.io/skip-subnets on the namespaces"),
	"container repair-controller": func(b *builder, s Setting) {
		b.keep(s, "repair.mode", "delete")
	},
}

func linkerdMode(b *builder, s Setting) {
	switch s.Value {
	case "nft":
		b.keep(s, "backend", "iptables-nft")
	case "legacy":
		b.keep(s, "backend", "iptables-legacy")
	case "", "plain":
		b.needless(s, "backend auto finds the host's")
	default:
		b.wrong(s, errors.New("it is none of nft, legacy and plain"))
	}
}

func names(v string) (any, error) {
	var all []string
	if err := json.Unmarshal([]byte(v), &all); err != nil {
		return nil, err
	}
	return words(strings.Join(all, ",")), nil
}

// change is the effect on a pod's rules of a setting without an equal here, so that the other's rules can be told from ours.
type change struct {
	Setting
	// annotation, on the pod or its namespace, counts instead of the setting; empty: none does.
	annotation string
}

// changing is for settings that change the rules of all pods, unless they say what is the default here too.
func changing(annotation, do string) rule {
	return func(b *builder, s Setting) {
		c, r := change{s, annotation}, linkerd.Defaults()
		if err := c.apply(&r); err != nil {
			b.wrong(s, err)
			return
		}
		if reflect.DeepEqual(r, linkerd.Defaults()) {
			b.needless(s, "the default here too")
			return
		}
		b.undone(s, do, true)
		b.changed = append(b.changed, c)
	}
}

// apply makes the rules what the other plugin makes of the setting.
func (c change) apply(r *redirect.Redirect) (err error) {
	switch c.Key {
	case "linkerd.proxy-uid":
		err = redirect.SetProxyUser(r, c.Value)
	case "linkerd.proxy-gid":
		if c.Value != "-1" && c.Value != "0" { // no group
			r.Proxy.GIDs, err = redirect.ParseIDs(c.Value)
		}
	case "linkerd.incoming-proxy-port":
		r.Proxy.InboundPort, err = redirect.ParsePort(c.Value, 0)
	case "linkerd.outgoing-proxy-port":
		r.Proxy.OutboundPort, err = redirect.ParsePort(c.Value, 0)
	case "linkerd.ipv6":
		var on any
		if on, err = truth(c.Value); on == false {
			r.IPv6 = redirect.FamilyPass
		}
	case "linkerd.ports-to-redirect":
		var only redirect.PortSet
		if only, err = ports(c.Value); err == nil && !only.Empty() { // an empty list is all
			r.Inbound.Ports = only
		}
	case "linkerd.inbound-ports-to-ignore": // annotations add to it
		var more redirect.PortSet
		more, err = ports(c.Value)
		r.Inbound.ExcludePorts = r.Inbound.ExcludePorts.Union(more)
	case "linkerd.outbound-ports-to-ignore":
		r.Outbound.ExcludePorts, err = ports(c.Value)
	case "linkerd.subnets-to-ignore":
		var list string
		if list, err = joined(c.Value); err == nil {
			r.Inbound.ExcludeSources, err = redirect.ParsePrefixes(list, redirect.AllowSpaces)
		}
	default:
		err = errors.New("what it does to the rules is not known")
	}
	return err
}

// ports reads a JSON list of ports and ranges, as numbers or strings.
func ports(v string) (redirect.PortSet, error) {
	list, err := joined(v)
	if err != nil {
		return redirect.PortSet{}, err
	}
	return redirect.ParsePorts(list, redirect.AllowRanges)
}

func joined(v string) (string, error) {
	var all []any
	if err := json.Unmarshal([]byte(v), &all); err != nil {
		return "", err
	}
	list := make([]string, len(all))
	for i := range all {
		list[i] = strings.TrimSpace(fmt.Sprint(all[i]))
	}
	return strings.Join(list, ","), nil
}
