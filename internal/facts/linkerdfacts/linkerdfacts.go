// Package linkerdfacts has the facts of Linkerd that its rules do not need: see [mesh.Facts].
package linkerdfacts

import (
	"errors"
	"fmt"
	"strconv"

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
		TestPod:     mesh.TestPod{Annotations: map[string]string{linkerd.ProxyVersion: "test"}},
		Init:        &mesh.Init{Flags: Flags(), Redirect: written},
		PluginTypes: []string{"linkerd-cni"},
	}
}

// Flags returns those of Linkerd's proxy-init. The keys of its plugin's configuration have the same names.
func Flags() []mesh.Flag {
	return []mesh.Flag{
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
	r.IPv6 = redirect.FamilyPass
	if on {
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
