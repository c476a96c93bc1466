package facts_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// pod is one with an init container; addrs are its addresses.
func pod(c corev1.Container, addrs ...string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = "shop", "cart"
	p.Annotations = map[string]string{}
	p.Spec.InitContainers = []corev1.Container{c}
	p.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}, {Name: "linkerd-proxy"}, {Name: "kuma-sidecar"}, {Name: "consul-dataplane"}}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

// read returns what a mesh's init container writes in a pod.
func read(name string, c corev1.Container, ours redirect.Redirect, addrs ...string) (redirect.Redirect, error) {
	in := mesh.InitContainer{Pod: pod(c, addrs...), Container: &c, Ours: ours}
	for _, a := range addrs {
		in.Addrs = append(in.Addrs, netip.MustParseAddr(a))
	}
	d := dialect.SetOf(builtin.All()...).Lookup(name)
	return facts.All().Of(name, d).Init.Read(d, in)
}

const consulJSON = `{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ExcludeInboundPorts": ["9090"], "ExcludeUIDs": ["5996"]}`

var (
	linkerdArgs = []string{
		"--ipv6=false", "--incoming-proxy-port", "4143", "--outgoing-proxy-port", "4140", "--proxy-uid", "2102",
		"--inbound-ports-to-ignore", "4190,4191,4567-4568", "--outbound-ports-to-ignore", "4567,4568", "--subnets-to-ignore=10.9.0.0/16",
		"--log-format", "plain", "--log-level", "info", "--iptables-mode", "nft", "-w", "--timeout-close-wait-secs", "3600",
	}
	kumaArgs = []string{
		"--redirect-outbound-port", "15001", "--redirect-inbound=true", "--redirect-inbound-port", "15006", "--kuma-dp-uid", "5678",
		"--exclude-inbound-ports", "", "--exclude-outbound-ports", "3306, 5432", "--exclude-outbound-ports-for-uids", "tcp:22:1000-2000",
		"--redirect-all-dns-traffic", "--redirect-dns-port", "15053", "--ip-family-mode", "ipv4", "--verbose",
	}
)

// TestRedirect: what each mesh's container is told is what it writes.
func TestRedirect(t *testing.T) {
	t.Parallel()
	yaml := []string{"--config", "redirect:\n  inbound:\n    port: 15106\n  outbound:\n    excludePorts: [25]\n", "--exclude-outbound-ports=26"}
	for name, tc := range map[string]struct {
		mesh string
		c    corev1.Container
		want func() redirect.Redirect
	}{
		"istio": {"istio", corev1.Container{Args: []string{"istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-i", "*", "-x", "", "-b", "*", "-d", "15090"}}, func() redirect.Redirect {
			r := istio.DefaultRedirect()
			r.Inbound.ExcludePorts, r.Outbound.ExcludePorts = redirect.Ports(15090), redirect.PortSet{}
			r.IPv6 = redirect.FamilyCapture
			return r
		}},
		"istio, what is absent": {"istio", corev1.Container{Args: []string{"istio-iptables", "-d", "15090,", "-q", "3306", "--log_output_level=default:info", "--native-nftables", "--cni-mode"}}, func() redirect.Redirect {
			r := istio.DefaultRedirect()
			r.IPv6 = redirect.FamilyCapture
			r.Inbound, r.Outbound = redirect.Inbound{Ports: redirect.NoPorts()}, redirect.Outbound{CIDRs: redirect.NoPrefixes(), Ports: redirect.Ports(3306)}
			return r
		}},
		"linkerd": {"linkerd", corev1.Container{Args: linkerdArgs}, func() redirect.Redirect {
			r := linkerd.DefaultRedirect()
			r.IPv6 = redirect.FamilyPass
			r.Inbound.ExcludePorts, r.Outbound.ExcludePorts = redirect.Ports(4190, 4191, 4567, 4568), redirect.Ports(4567, 4568)
			r.Inbound.ExcludeSources = redirect.Prefixes(netip.MustParsePrefix("10.9.0.0/16"))
			return r
		}},
		"linkerd, some ports": {"linkerd", corev1.Container{Args: []string{"-p", "1", "-o", "2", "-u", "3", "-g", "4", "-r", "80,81", "--ipv6"}}, func() redirect.Redirect {
			r := linkerd.DefaultRedirect()
			r.Proxy.InboundPort, r.Proxy.OutboundPort, r.Proxy.UIDs, r.Proxy.GIDs = 1, 2, []uint32{3}, []uint32{4}
			r.Inbound.ExcludePorts, r.Inbound.Ports, r.IPv6 = redirect.PortSet{}, redirect.Ports(80, 81), redirect.FamilyCapture
			return r
		}},
		"kuma": {"kuma", corev1.Container{Args: kumaArgs}, func() redirect.Redirect {
			return built(t, kuma.New(), map[string]string{kuma.Config: `
kumaDPUser: "5678"
ipFamilyMode: ipv4
redirect:
  inbound: {enabled: true, port: 15006}
  outbound: {port: 15001, excludePorts: [3306, 5432], excludePortsForUIDs: ["tcp:22:1000-2000"]}
  dns: {enabled: true, captureAll: true, port: 15053}
`})
		}},
		"kuma, configured": {"kuma", corev1.Container{Args: yaml}, func() redirect.Redirect {
			return built(t, kuma.New(), map[string]string{kuma.Config: "redirect: {inbound: {port: 15106}, outbound: {excludePorts: [26]}}"})
		}},
		"kuma, a flag before the configuration": {"kuma", corev1.Container{Args: []string{"--config", "redirect: {dns: {enabled: true}}", "--redirect-dns=false"}}, func() redirect.Redirect {
			return built(t, kuma.New(), map[string]string{kuma.Config: "redirect: {dns: {enabled: false}}"})
		}},
		"consul, by a variable": {"consul", corev1.Container{Env: []corev1.EnvVar{{Name: "CONSUL_REDIRECT_TRAFFIC_CONFIG", Value: consulJSON}}}, func() redirect.Redirect {
			return built(t, consul.New(), map[string]string{consul.RedirectTrafficConfig: consulJSON, consul.DualStack: "false"})
		}},
		"consul, by a flag": {"consul", corev1.Container{Command: []string{"c", "connect-init"}, Args: []string{"-redirect-traffic-config=" + consulJSON}}, func() redirect.Redirect {
			return built(t, consul.New(), map[string]string{consul.RedirectTrafficConfig: consulJSON, consul.DualStack: "false"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours := redirect.Default()
			ours.IPv6 = redirect.FamilyCapture
			got, err := read(tc.mesh, tc.c, ours, "10.244.1.5")
			require.NoError(t, err)
			want, err := tc.want().Ruleset()
			require.NoError(t, err)
			rules, err := got.Ruleset()
			require.NoError(t, err)
			assert.Equal(t, want.String(), rules.String())
		})
	}
}

func built(t *testing.T, d dialect.Dialect, annotations map[string]string) redirect.Redirect {
	p := pod(corev1.Container{Name: "x"}, "10.244.1.5")
	p.Annotations = annotations
	r, err := d.Redirect(p, nil, nil)
	require.NoError(t, err)
	return r.Redirect
}

// TestRedirectUnknown: what is not understood is said, and nothing is returned for it.
func TestRedirectUnknown(t *testing.T) {
	t.Parallel()
	with := func(list []string, more ...string) corev1.Container {
		return corev1.Container{Args: append(append([]string{}, list...), more...)}
	}
	dns := "ISTIO_META_DNS_CAPTURE"
	elsewhere := []corev1.EnvVar{{Name: "CONSUL_REDIRECT_TRAFFIC_CONFIG", ValueFrom: &corev1.EnvVarSource{}}}
	for want, tc := range map[string]struct {
		mesh string
		c    corev1.Container
	}{
		"shiny":                              {"istio", with(nil, "--shiny")},
		"of variable " + dns:                 {"istio", corev1.Container{Env: []corev1.EnvVar{{Name: dns, ValueFrom: &corev1.EnvVarSource{}}}}},
		dns + " is not in the pod":           {"istio", corev1.Container{Env: []corev1.EnvVar{{Name: dns, Value: "$(DNS)"}}}},
		"is not in the pod":                  {"istio", corev1.Container{EnvFrom: []corev1.EnvFromSource{{}}}},
		"not defined: -dazzle":               {"linkerd", with(linkerdArgs, "--dazzle")},
		"--simulate it writes no rules":      {"linkerd", with(linkerdArgs, "--simulate")},
		"--netns it writes":                  {"linkerd", with(linkerdArgs, "--netns", "/proc/1/ns/net")},
		`"more" is no flag`:                  {"linkerd", with(linkerdArgs, "more")},
		"without --ipv6":                     {"linkerd", with(linkerdArgs[1:])},
		"--proxy-uid: it is absent":          {"linkerd", with(linkerdArgs[:5])},
		"--outbound-ports-to-ignore":         {"linkerd", with(linkerdArgs, "--outbound-ports-to-ignore", "http")},
		`"$(PORT)" takes a variable's value`: {"linkerd", with(linkerdArgs, "--proxy-uid", "$(PORT)")},
		"not defined: -sparkle":              {"kuma", with(kumaArgs, "--sparkle")},
		"is in file /tmp/c.yaml":             {"kuma", with(kumaArgs, "--config-file", "/tmp/c.yaml")},
		"it has no arguments":                {"kuma", with(nil)},
		"dryRun it writes no rules":          {"kuma", with(kumaArgs, "--dry-run")},
		"redirect is no mapping":             {"kuma", with(kumaArgs, "--config", "redirect: 1")},
		"glitter":                            {"kuma", with(nil, "--config", "glitter: 1")},
		"no argument or variable has":        {"consul", with(nil, "connect-init")},
		"TRAFFIC_CONFIG is not in the pod":   {"consul", corev1.Container{Env: elsewhere}},
		"whether it captures IPv6":           {"consul", with(nil, "-redirect-traffic-config", consulJSON)},
		"ProxyUserID":                        {"consul", with(nil, "-redirect-traffic-config", "{}")},
	} {
		addrs := []string{"10.244.1.5", "fd00::5"}
		if want == "ProxyUserID" {
			addrs = addrs[:1]
		}
		_, err := read(tc.mesh, tc.c, redirect.Default(), addrs...)
		assert.ErrorContains(t, err, want)
	}
}

// TestBeside: a program's own facts come first, and replace ours of the same mesh; ours are those of its dialects.
func TestBeside(t *testing.T) {
	names := func(l mesh.List) (names []string) {
		for _, f := range l {
			names = append(names, f.Title)
		}
		return names
	}
	assert.Equal(t, names(facts.All()), names(facts.Beside(nil, nil)))
	own := mesh.List{{Name: "acme", Title: "Acme"}, {Name: "kuma", Title: "Our Kuma"}}
	assert.Equal(t, []string{"Acme", "Our Kuma"}, names(facts.Beside(own, nil)))
	all := facts.Beside(own, []dialect.Dialect{{Name: "acme"}, istio.New(), kuma.New()})
	assert.Equal(t, []string{"Acme", "Our Kuma", "Istio (sidecar)"}, names(all))
	assert.Equal(t, names(all), names(facts.Beside(all, []dialect.Dialect{istio.New()})))
}
