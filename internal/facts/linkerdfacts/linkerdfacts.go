// Package linkerdfacts has the facts of Linkerd that its rules do not need: see [mesh.Facts].
package linkerdfacts

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// New returns the facts.
func New() mesh.Facts {
	asks := []mesh.Wish{mesh.Annotation("linkerd.io/inject", []string{"enabled", "ingress"}, []string{"disabled"})}
	return mesh.Facts{
		Name: "linkerd", Title: "Linkerd",
		Injection: mesh.Injection{
			Pod: asks, Namespace: asks, PodWins: true, Unasked: mesh.No,
			Webhook:    "proxy-injector.linkerd.io",
			Health:     "kubectl --namespace linkerd get pods --selector linkerd.io/control-plane-component=proxy-injector says whether the injector runs",
			PluginMode: "cniEnabled=true in the values of linkerd-control-plane's chart",
			Never:      []string{"kube-system"},
		},
		TestPod: mesh.TestPod{Annotations: map[string]string{
			linkerd.ProxyVersion: "test", linkerd.SkipInboundPorts: fmt.Sprint(mesh.ExcludedPort), linkerd.SkipOutboundPorts: fmt.Sprint(mesh.ExcludedPort),
		}},
		Init:   &mesh.Init{Flags: flags, Redirect: written},
		Plugin: plugin, PluginTypes: []string{plugin.Type},
	}
}

// flags are those of Linkerd's proxy-init. The keys of its plugin's configuration have the same names.
var flags = []mesh.Flag{
	{Name: "incoming-proxy-port", Short: "p", Field: "proxy.inboundPort"},
	{Name: "outgoing-proxy-port", Short: "o", Field: "proxy.outboundPort"},
	{Name: "proxy-uid", Short: "u", Set: redirect.SetProxyUser},
	{Name: "proxy-gid", Short: "g", Set: setGroup},
	{Name: "ports-to-redirect", Short: "r", List: true, Set: setOnly},
	{Name: "inbound-ports-to-ignore", List: true, Field: "inbound.excludePorts", Grammar: redirect.Grammar{Ranges: true}},
	{Name: "outbound-ports-to-ignore", List: true, Field: "outbound.excludePorts", Grammar: redirect.Grammar{Ranges: true}},
	{Name: "subnets-to-ignore", List: true, Field: "inbound.excludeSources", Grammar: redirect.Grammar{Spaces: true}},
	{Name: "ipv6", Bool: true, Field: "ipv6", Set: setIPv6},
	{Name: "simulate", Bool: true, Refused: "writes no rules"},
	{Name: "netns", Refused: "writes the rules elsewhere"},
	{Name: "use-wait-flag", Short: "w", Bool: true},
	{Name: "log-format"}, {Name: "log-level"}, {Name: "firewall-bin-path"}, {Name: "firewall-save-bin-path"}, {Name: "iptables-mode"},
	{Name: "timeout-close-wait-secs"}, // of the kernel
}

// setGroup reads -1 and 0, as the injector writes them, as none.
func setGroup(r *redirect.Redirect, value string) error {
	n, err := strconv.Atoi(value)
	if value == "" || err == nil && n <= 0 {
		return nil
	}
	r.Proxy.GIDs, err = redirect.ParseIDs(value)
	return err
}

// setOnly reads an empty list as all.
func setOnly(r *redirect.Redirect, value string) error {
	only, err := redirect.ParsePorts(value, redirect.Grammar{Ranges: true})
	if err == nil && !only.Empty() {
		r.Inbound.Ports = only
	}
	return err
}

var setIPv6 = redirect.Bool(func(r *redirect.Redirect, on bool) {
	if r.IPv6 = redirect.FamilyPass; on {
		r.IPv6 = redirect.FamilyCapture
	}
})

// written returns the rules that proxy-init writes.
func written(c mesh.InitContainer) (redirect.Redirect, error) {
	r := linkerd.DefaultRedirect()
	r.Inbound.ExcludePorts, r.IPv6 = redirect.PortSet{}, c.Ours.IPv6
	if len(c.Values("ipv6")) == 0 && c.HasIPv6() { // the default depends on the version
		return redirect.Redirect{}, errors.New("without --ipv6 it is not known whether it captures IPv6")
	}
	for _, name := range []string{"incoming-proxy-port", "outgoing-proxy-port", "proxy-uid"} {
		if len(c.Values(name)) == 0 {
			return redirect.Redirect{}, fmt.Errorf("--%s: it is absent", name)
		}
	}
	err := c.Apply(&r)
	return r, err
}

// plugin has the variables and volumes of linkerd2-cni's chart (charts/linkerd2-cni), and the keys of its network configuration
// (linkerd2-proxy-init, cni-plugin).
var plugin = &mesh.Plugin{
	Type: "linkerd-cni",
	DaemonSet: []mesh.Mark{
		{Labels: map[string]string{"k8s-app": "linkerd-cni"}}, {Labels: map[string]string{"linkerd.io/cni-resource": "true"}}, {ConfigMap: "linkerd-cni-config"},
	},
	Settings: map[string]mesh.Translate{
		"DEST_CNI_NET_DIR":                 mesh.Keep("cni.confDir", mesh.Path),
		"DEST_CNI_BIN_DIR":                 mesh.Keep("cni.binDirs", mesh.Paths),
		"volume cni-bin-dir":               mesh.Needless("DEST_CNI_BIN_DIR says it"),
		"volume cni-net-dir":               mesh.Needless("DEST_CNI_NET_DIR says it"),
		"SLEEP":                            mesh.Needless(mesh.StartWay),
		"name":                             mesh.Needless(mesh.Bookkeeping),
		"type":                             mesh.Needless(mesh.Bookkeeping),
		"cniVersion":                       mesh.Needless(mesh.ListCounts),
		"log_level":                        mesh.Keep("logLevel", mesh.Level),
		"policy.type":                      mesh.Needless(mesh.Bookkeeping),
		"policy.k8s_api_root":              mesh.Needless(mesh.Bookkeeping),
		"policy.k8s_auth_token":            mesh.Needless(mesh.Bookkeeping),
		"kubernetes.kubeconfig":            mesh.Needless(mesh.Bookkeeping),
		"linkerd.use-wait-flag":            mesh.Needless("nobody else's lock is waited for"),
		"linkerd.iptables-mode":            mesh.OneOf("backend", map[string]string{"nft": "iptables-nft", "legacy": "iptables-legacy", "": "", "plain": ""}, "backend auto finds the host's", "it is none of nft, legacy and plain"),
		"linkerd.simulate":                 mesh.Unless("rules are written", "the other writes no rules at all: the mesh does not get these pods' traffic today", true, "false"),
		"linkerd.ipv6":                     changes("ipv6", "", "here IPv6 is captured if the pod's proxy listens on it, which the injector decides; with uncapturedFamily its bypass can be closed"),
		"linkerd.proxy-uid":                changes("proxy-uid", linkerd.ProxyUID, "pods whose proxy container says no user are taken to run it as 2102 here: set config.linkerd.io/proxy-uid on their namespaces"),
		"linkerd.proxy-gid":                changes("proxy-gid", linkerd.ProxyGID, "set config.linkerd.io/proxy-gid on the namespaces"),
		"linkerd.incoming-proxy-port":      changes("incoming-proxy-port", linkerd.InboundPort, "the port comes from the pod's proxy here; set config.linkerd.io/inbound-port on the namespaces if the proxy does not say it"),
		"linkerd.outgoing-proxy-port":      changes("outgoing-proxy-port", linkerd.OutboundPort, "the port comes from the pod's proxy here; set config.linkerd.io/outbound-port on the namespaces if the proxy does not say it"),
		"linkerd.ports-to-redirect":        changes("ports-to-redirect", "", "here all inbound ports are redirected; skip the others by config.linkerd.io/skip-inbound-ports on the namespaces"),
		"linkerd.inbound-ports-to-ignore":  changes("inbound-ports-to-ignore", "", "set config.linkerd.io/skip-inbound-ports on the namespaces"),
		"linkerd.outbound-ports-to-ignore": changes("outbound-ports-to-ignore", linkerd.SkipOutboundPorts, "set config.linkerd.io/skip-outbound-ports on the namespaces"),
		"linkerd.subnets-to-ignore":        changes("subnets-to-ignore", linkerd.SkipSubnets, "set config.linkerd.io/skip-subnets on the namespaces"),
		"container repair-controller": func(string, map[string]string) mesh.Outcome {
			return mesh.Outcome{Path: "repair.mode", Value: "delete"}
		},
	},
	Remove: []string{
		"Remove the other: helm uninstall linkerd2-cni. Its agents take their entry and their binary out. Leave cniEnabled=true: it tells the injector that there is a plugin.",
	},
}

// changes is for settings that change the rules of all pods, unless they say what is the default here too. The plugin has them as proxy-init
// has its flags, with lists as JSON, and an annotation of the pod or its namespace counts before. Inbound ports that it ignores add to the
// annotation's.
func changes(name, annotation, do string) mesh.Translate {
	f := flags[slices.IndexFunc(flags, func(f mesh.Flag) bool { return f.Name == name })]
	return func(value string, _ map[string]string) mesh.Outcome {
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
			return mesh.Outcome{Err: err}
		case reflect.DeepEqual(r, linkerd.DefaultRedirect()):
			return mesh.Outcome{Needless: "the default here too"}
		}
		return mesh.Outcome{Undone: do, Rules: true, Change: apply, Annotation: annotation}
	}
}
