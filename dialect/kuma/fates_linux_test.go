package kuma_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var proxy = netnstest.Options{ProxyUID: 5678, ProxyGID: 5678}

// own is Kuma's program in iptables' words, written by hand from its
// documentation, for IPv4; ours must do the same to every packet.
type own struct {
	prerouting, output, inbound, outbound, tables string
	output4, inbound4                             string // before output and inbound, for IPv4 only
	dns                                           bool
	inserted, noOutbound                          bool     // the jump to KUMA_MESH_OUTBOUND, and all in it
	ports                                         []string // pairs: those in place of which others stand
}

// noYAML is the configuration of a pod of Kuma 2.x.
const noYAML = ""

const redirectAllIn = "-A KUMA_MESH_INBOUND -p tcp -j KUMA_MESH_INBOUND_REDIRECT\n"

func (o own) text(f ruleset.Family) string {
	var b strings.Builder
	b.WriteString(o.tables)
	b.WriteString("*nat\n:KUMA_MESH_INBOUND - [0:0]\n:KUMA_MESH_OUTBOUND - [0:0]\n" +
		":KUMA_MESH_INBOUND_REDIRECT - [0:0]\n:KUMA_MESH_OUTBOUND_REDIRECT - [0:0]\n")
	b.WriteString(o.prerouting)
	b.WriteString("-A PREROUTING -p tcp -j KUMA_MESH_INBOUND\n")
	if f == ruleset.IPv4 {
		b.WriteString(o.output4 + o.inbound4)
	}
	b.WriteString(o.output)
	not53, jump, tcp53 := "", "-A OUTPUT -p tcp -j KUMA_MESH_OUTBOUND\n", ""
	if o.dns {
		not53, tcp53 = " ! --dport 53", "-A OUTPUT -p tcp --dport 53 -m owner ! --uid-owner 5678 -j RETURN\n"
		b.WriteString("-A OUTPUT -p udp --dport 53 -m owner --uid-owner 5678 -j RETURN\n" +
			"-A OUTPUT -p udp --dport 53 -j REDIRECT --to-ports 15053\n")
	}
	if o.inserted {
		b.WriteString(jump + tcp53)
	} else {
		b.WriteString(tcp53 + jump)
	}
	b.WriteString(o.inbound)
	b.WriteString(o.outbound)
	if o.noOutbound {
		b.WriteString("-A KUMA_MESH_OUTBOUND -p tcp -j RETURN\n")
	}
	b.WriteString("-A KUMA_MESH_OUTBOUND -s 127.0.0.6/32 -o lo -j RETURN\n" +
		"-A KUMA_MESH_OUTBOUND ! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 5678 -j KUMA_MESH_INBOUND_REDIRECT\n" +
		"-A KUMA_MESH_OUTBOUND -o lo -p tcp" + not53 + " -m owner ! --uid-owner 5678 -j RETURN\n" +
		"-A KUMA_MESH_OUTBOUND -m owner --uid-owner 5678 -j RETURN\n" +
		"-A KUMA_MESH_OUTBOUND -d 127.0.0.1/32 -j RETURN\n" +
		"-A KUMA_MESH_OUTBOUND -j KUMA_MESH_OUTBOUND_REDIRECT\n" +
		"-A KUMA_MESH_INBOUND_REDIRECT -p tcp -j REDIRECT --to-ports 15006\n" +
		"-A KUMA_MESH_OUTBOUND_REDIRECT -p tcp -j REDIRECT --to-ports 15001\nCOMMIT\n")
	text := strings.NewReplacer(o.ports...).Replace(b.String())
	if f == ruleset.IPv4 {
		return text
	}
	return strings.NewReplacer("127.0.0.1/32", "::1/128", "127.0.0.6/32", "::6/128", "10.96.0.0/16", "fd00:96::/64",
		"10.244.1.1/32", "fd00:10:244::1/128", "10.99.0.0/24", "fd00:99::/64").Replace(text)
}

// lookups are probes to port 53 of the pod itself.
func lookups(t *testing.T) []netnstest.Probe {
	t.Helper()
	var probes []netnstest.Probe
	for _, proto := range []string{"tcp", "udp"} {
		for _, owner := range []string{"1000/1000", "5678/5678", "0/0"} {
			for _, to := range []string{"127.0.0.1", "10.244.1.5", "[::1]", "[fd00:10:244::5]"} {
				p, err := netnstest.ParseProbe("pod " + proto + " " + owner + " -> " + to + ":53")
				require.NoError(t, err)
				probes = append(probes, p)
			}
		}
	}
	return probes
}

// A trial run leaves every packet alone.
func TestFatesOfADryRun(t *testing.T) {
	probes := netnstest.Probes(netnstest.Plan{ProxyUID: 5678, ProxyGID: 5678})
	pod := meshed(func(p *corev1.Pod) { p.Annotations[kuma.Config] = "dryRun: true\nredirect: {dns: {enabled: true}}\n" })
	dialecttest.Equivalent(t, kuma.New(), proxy, dialecttest.Case{Pod: pod}, nil, probes)
}

func TestFates(t *testing.T) {
	probes := append(netnstest.Probes(netnstest.Plan{ProxyUID: 5678, ProxyGID: 5678}), lookups(t)...)
	all := own{inbound: redirectAllIn}
	zones := "*raw\n-A OUTPUT -p udp --dport 53 -m owner --uid-owner 5678 -j CT --zone 1\n" +
		"-A OUTPUT -p udp --sport 15053 -m owner --uid-owner 5678 -j CT --zone 2\n" +
		"-A OUTPUT -p udp --dport 53 -j CT --zone 2\n-A PREROUTING -p udp --sport 53 -j CT --zone 1\nCOMMIT\n"
	tests := []struct {
		name   string
		config string
		users  map[string]string
		own    own
		ipv4   bool
	}{
		{"plain", "kumaDPUser: \"5678\"\n", nil, all, false},
		{"ipv4", "ipFamilyMode: ipv4\n", nil, all, true},
		{"ports", "redirect: {inbound: {excludePorts: [8080, 22]}, outbound: {excludePorts: \"3306,443\"}}\n", nil, own{
			inbound:  "-A KUMA_MESH_INBOUND -p tcp --dport 22 -j RETURN\n-A KUMA_MESH_INBOUND -p tcp --dport 8080 -j RETURN\n" + redirectAllIn,
			outbound: "-A KUMA_MESH_OUTBOUND -p tcp --dport 3306 -j RETURN\n-A KUMA_MESH_OUTBOUND -p tcp --dport 443 -j RETURN\n",
		}, false},
		{"included inbound ports", "redirect: {inbound: {includePorts: [8080], excludePorts: [8080]}}\n", nil, own{
			inbound: "-A KUMA_MESH_INBOUND -p tcp --dport 8080 -j KUMA_MESH_INBOUND_REDIRECT\n",
		}, false},
		{"users and addresses", noYAML, map[string]string{
			"traffic.kuma.io/exclude-outbound-ports-for-uids": "tcp:80,9000-9999:1000-2000;53:0",
			"traffic.kuma.io/exclude-outbound-ips":            "10.96.0.0/16,fd00:96::/64",
			"traffic.kuma.io/exclude-inbound-ips":             "10.244.1.1,fd00:10:244::1",
		}, own{
			output: "-A OUTPUT -p tcp -m multiport --dports 80,9000:9999 -m owner --uid-owner 1000-2000 -j RETURN\n" +
				"-A OUTPUT -p tcp --dport 53 -m owner --uid-owner 0 -j RETURN\n-A OUTPUT -p udp --dport 53 -m owner --uid-owner 0 -j RETURN\n" +
				"-A OUTPUT -d 10.96.0.0/16 -j RETURN\n",
			inbound: "-A KUMA_MESH_INBOUND -s 10.244.1.1/32 -j RETURN\n" + redirectAllIn,
		}, false},
		{"look-ups, and a user without", "redirect: {dns: {enabled: true, captureAll: true}, outbound: {excludePortsForUIDs: [\"udp:53:2000\"]}}\n", nil, own{
			output: "-A OUTPUT -p udp --dport 53 -m owner --uid-owner 2000 -j RETURN\n", inbound: redirectAllIn, dns: true,
			tables: zones,
		}, false},
		{"annotations beside the YAML", "kumaDPUser: 5678\nredirect: {inbound: {excludePorts: [22]}, outbound: {excludePorts: [443]}}\n", map[string]string{
			"traffic.kuma.io/exclude-inbound-ports": "8080", "traffic.kuma.io/exclude-outbound-ports": ",", "traffic.kuma.io/exclude-outbound-ports-for-uids": "1000", "traffic.kuma.io/exclude-outbound-ips": "0.0.0.0/0,::/0",
			"traffic.kuma.io/exclude-inbound-ips": "0.0.0.0/0", "kuma.io/sidecar-uid": "1000", "kuma.io/gateway": "enabled", "kuma.io/transparent-proxying-ip-family-mode": "ipv4", "kuma.io/builtin-dns": "?",
		}, own{
			inbound:  "-A KUMA_MESH_INBOUND -p tcp --dport 22 -j RETURN\n" + redirectAllIn,
			outbound: "-A KUMA_MESH_OUTBOUND -p tcp --dport 443 -j RETURN\n",
		}, false},
		{"redirection inserted", "redirect: {dns: {enabled: true, captureAll: true}, inbound: {insertRedirectInsteadOfAppend: true}, " +
			"outbound: {insertRedirectInsteadOfAppend: true, excludePortsForIPs: [10.96.0.0/16]}}\n", nil, own{
			output4: "-A OUTPUT -d 10.96.0.0/16 -j RETURN\n", inbound: redirectAllIn, dns: true, inserted: true, tables: zones,
		}, false},
		{"redirection inserted, nothing excluded", "redirect: {dns: {enabled: true, captureAll: true}, outbound: {insertRedirectInsteadOfAppend: true}}\n", nil, own{
			inbound: redirectAllIn, dns: true, inserted: true, tables: zones,
		}, false},
		{"no outbound connection, but look-ups", "redirect: {dns: {enabled: true, captureAll: true}, outbound: {enabled: false}}\n", nil, own{
			inbound: redirectAllIn, dns: true, noOutbound: true, tables: zones,
		}, false},
		{"no outbound connection", "redirect: {outbound: {enabled: false}}\n", nil, own{inbound: redirectAllIn, noOutbound: true}, false},
		{"IPv4-mapped addresses", "redirect: {inbound: {excludePortsForIPs: [\"::ffff:10.244.1.1\"]}, outbound: {excludePortsForIPs: [\"::ffff:10.96.0.0/112\"]}}\n", nil, own{
			output4:  "-A OUTPUT -d 10.96.0.0/16 -j RETURN\n",
			inbound4: "-A KUMA_MESH_INBOUND -s 10.244.1.1/32 -j RETURN\n", inbound: redirectAllIn,
		}, false},
		{"Kuma 2.x", noYAML, map[string]string{
			"kuma.io/builtin-dns": "enabled", "kuma.io/builtin-dns-port": "16053", "kuma.io/transparent-proxying-inbound-port": "16006", "kuma.io/transparent-proxying-outbound-port": "16001",
			"kuma.io/virtual-probes": "enabled", "kuma.io/virtual-probes-port": "9090", "traffic.kuma.io/exclude-inbound-ports": "22", "kuma.io/transparent-proxying-inbound-v6-port": "15010",
		}, own{
			inbound: "-A KUMA_MESH_INBOUND -p tcp --dport 22 -j RETURN\n-A KUMA_MESH_INBOUND -p tcp --dport 9090 -j RETURN\n" + redirectAllIn,
			dns:     true, tables: zones, ports: []string{"15053", "16053", "15006", "16006", "15001", "16001"},
		}, false},
		{"gateway", noYAML, map[string]string{"kuma.io/gateway": "enabled", "traffic.kuma.io/drop-invalid-packets": "true"}, own{
			inbound: "-A KUMA_MESH_INBOUND -p tcp -j RETURN\n",
			tables:  "*mangle\n-A PREROUTING -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n",
		}, false},
		{"virtual network", "redirect: {dns: {enabled: true}, vnet: {networks: [\"virt0:10.99.0.0/24\", \"virt0:fd00:99::/64\"]}}\n", nil, own{
			prerouting: "-A PREROUTING -i virt0 -p udp --dport 53 -j REDIRECT --to-ports 15053\n" +
				"-A PREROUTING ! -d 10.99.0.0/24 -i virt0 -p tcp -j REDIRECT --to-ports 15001\n",
			inbound: redirectAllIn, dns: true,
		}, false},
		{"virtual networks by wildcard", "redirect: {dns: {enabled: true}, vnet: {networks: [\"vi+:10.99.0.0/24\", \"vi+:fd00:99::/64\"]}}\n", nil, own{
			prerouting: "-A PREROUTING -i vi+ -p udp --dport 53 -j REDIRECT --to-ports 15053\n" +
				"-A PREROUTING ! -d 10.99.0.0/24 -i vi+ -p tcp -j REDIRECT --to-ports 15001\n",
			inbound: redirectAllIn, dns: true,
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := meshed(func(p *corev1.Pod) {
				p.Annotations[kuma.Config] = tt.config
				for k, v := range tt.users {
					p.Annotations[k] = v
				}
			})
			programs := map[ruleset.Family]string{ruleset.IPv4: tt.own.text(ruleset.IPv4)}
			if !tt.ipv4 {
				programs[ruleset.IPv6] = tt.own.text(ruleset.IPv6)
			}
			o := proxy
			if len(tt.own.ports) > 0 {
				o.ProxyTCP, o.ProxyUDP, o.TransparentPort = []uint16{15001, 15006, 15008, 15020, 16001, 16006}, []uint16{15053, 16053}, 16006
			}
			dialecttest.Equivalent(t, kuma.New(), o, dialecttest.Case{Pod: pod}, programs, probes)
		})
	}
}
