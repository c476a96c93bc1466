package kuma_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// meshed is an injected pod, but for the changes.
func meshed(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{
			kuma.SidecarInjected: "true", kuma.Config: "verbose: true\n",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "kuma-sidecar"}, {Name: "cart"}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func userExclusion(protocol redirect.Protocol, ports redirect.PortSet, first, last uint32) redirect.Exclusion {
	return redirect.Exclusion{Protocol: protocol, Ports: ports, CIDRs: redirect.AllPrefixes(), UIDs: []redirect.IDRange{{First: first, Last: last}}}
}

// withoutYAML makes a pod one of Kuma 2.x.
func withoutYAML(p *corev1.Pod) { delete(p.Annotations, kuma.Config) }

func TestSelection(t *testing.T) {
	d := kuma.New("kuma-system")
	yaml := func(text string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Annotations[kuma.Config] = text } }
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		want   status.Code
	}{
		{"injected", func(*corev1.Pod) {}, status.CodeSelected},
		{"native sidecar", func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:1], p.Spec.Containers[1:]
		}, status.CodeSelected},
		{"rules set from inside", func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "kuma-init"}} }, status.CodeInitContainer},
		{"no proxy", func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] }, status.CodeNoProxy},
		{"not injected", func(p *corev1.Pod) { delete(p.Annotations, kuma.SidecarInjected) }, status.CodeNotInjected},
		{"injected: false", func(p *corev1.Pod) { p.Annotations[kuma.SidecarInjected] = "false" }, status.CodeNotInjected},
		{"excluded namespace", func(p *corev1.Pod) { p.Namespace = "kuma-system" }, status.CodeExcludedNamespace},
		{"host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, status.CodeHostNetwork},
		{"a trial run", yaml("kumaDPUser: 5678\ndryRun: true\n"), status.CodeDryRun},
		{"a trial run in JSON, and another case", yaml(`{"DryRun": true}`), status.CodeDryRun},
		{"a trial run, escaped", yaml(`"\x64ryRun": true`), status.CodeDryRun},
		{"a trial run, in base64", yaml(`!!binary ZHJ5UnVu: true`), status.CodeDryRun},
		{"no trial run", yaml("dryRun: false"), status.CodeSelected},
		{"a trial run of something else", yaml("retry: {dryRun: true}"), status.CodeSelected},
		{"a remark about trial runs", yaml("verbose: true # not dryRun: true"), status.CodeSelected},
		{"a trial run that cannot be read", yaml("dryRun: perhaps"), status.CodeSelected},
		{"a trial run outside the mesh", func(p *corev1.Pod) {
			yaml("dryRun: true")(p)
			delete(p.Annotations, kuma.SidecarInjected)
		}, status.CodeNotInjected},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, d.Decide(meshed(tt.change), nil).Reason, tt.name)
	}
}

func prefixes(list ...string) redirect.PrefixSet {
	var p []netip.Prefix
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return redirect.Prefixes(p...)
}

func exclude(e ...redirect.Exclusion) func(*redirect.Redirect) {
	return func(r *redirect.Redirect) { r.Outbound.Exclude = e }
}

func TestSettings(t *testing.T) {
	users := userExclusion
	all := redirect.AllPorts()
	same := func(*redirect.Redirect) {}
	config := func(yaml string, want func(*redirect.Redirect)) dialecttest.Setting {
		return dialecttest.Setting{Key: kuma.Config, Value: yaml, Want: want}
	}
	dns := func(d redirect.DNS) func(*redirect.Redirect) { return func(r *redirect.Redirect) { r.DNS = d } }
	captured := redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053, UDPOnly: true}
	excludeInbound := func(port uint16) func(*redirect.Redirect) {
		return func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(port) }
	}
	dialecttest.Settings(t, kuma.New(), meshed(withoutYAML), kuma.DefaultRedirect(), []string{
		"kuma.io/sidecar-uid", "kuma.io/application-probe-proxy-port", "traffic.kuma.io/exclude-inbound-ports", "traffic.kuma.io/exclude-outbound-ports", "traffic.kuma.io/exclude-outbound-ports-for-uids",
		"traffic.kuma.io/exclude-inbound-ips", "traffic.kuma.io/exclude-outbound-ips", "traffic.kuma.io/drop-invalid-packets", "traffic.kuma.io/iptables-logs", "kuma.io/transparent-proxying-ip-family-mode", "kuma.io/gateway",
		"kuma.io/transparent-proxying-inbound-port", "kuma.io/transparent-proxying-outbound-port", "kuma.io/transparent-proxying-inbound-v6-port", "kuma.io/builtin-dns", "kuma.io/builtin-dns-port", "kuma.io/builtindns",
		"kuma.io/virtual-probes", "kuma.io/virtual-probes-port",
	}, []dialecttest.Setting{
		{Key: "kuma.io/sidecar-uid", Value: "1000", Want: func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{1000} }},
		{Key: "kuma.io/sidecar-uid", Value: "kuma-dp"},
		{Key: "kuma.io/sidecar-uid", Value: "0"},
		{Key: "kuma.io/application-probe-proxy-port", Value: "9001", Want: func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(9001) }},
		{Key: "kuma.io/application-probe-proxy-port", Value: "0", Want: same},
		{Key: "kuma.io/application-probe-proxy-port", Value: "x"},
		{Key: "traffic.kuma.io/exclude-inbound-ports", Value: "22, 8080,", Want: func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(22, 8080) }},
		{Key: "traffic.kuma.io/exclude-inbound-ports", Value: "22-30"},
		{Key: "traffic.kuma.io/exclude-inbound-ports", Value: "0"},
		{Key: "traffic.kuma.io/exclude-outbound-ports", Value: "3306", Want: exclude(
			redirect.Exclusion{Protocol: redirect.TCP, Ports: redirect.Ports(3306), CIDRs: redirect.AllPrefixes()})},
		{Key: "traffic.kuma.io/exclude-outbound-ports", Value: "mysql"},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "tcp:22:1000-2000;udp:53:1001", Want: exclude(
			users(redirect.TCP, redirect.Ports(22), 1000, 2000), users(redirect.UDP, redirect.Ports(53), 1001, 1001))},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "80,9000-9100:1002", Want: exclude(
			users(redirect.TCP, redirect.PortRanges(ruleset.Port(80), ruleset.PortRange{First: 9000, Last: 9100}), 1002, 1002),
			users(redirect.UDP, redirect.PortRanges(ruleset.Port(80), ruleset.PortRange{First: 9000, Last: 9100}), 1002, 1002))},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "1000750000", Want: exclude(
			users(redirect.TCP, all, 1000750000, 1000750000), users(redirect.UDP, all, 1000750000, 1000750000))},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "*:*:1003", Want: exclude(users(redirect.TCP, all, 1003, 1003), users(redirect.UDP, all, 1003, 1003))},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "tcp,udp::1003", Want: exclude(users(redirect.TCP, all, 1003, 1003), users(redirect.UDP, all, 1003, 1003))},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "tcp:22:*"},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "tcp:22:1,2"},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "icmp:22:1"},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "a:tcp:22:1"},
		{Key: "traffic.kuma.io/exclude-outbound-ports-for-uids", Value: "tcp:70000:1"},
		{Key: "traffic.kuma.io/exclude-inbound-ips", Value: "10.0.0.1, fd00::/8", Want: func(r *redirect.Redirect) { r.Inbound.ExcludeSources = prefixes("10.0.0.1/32", "fd00::/8") }},
		{Key: "traffic.kuma.io/exclude-inbound-ips", Value: "gateway"},
		{Key: "traffic.kuma.io/exclude-outbound-ips", Value: "192.168.0.0/16,::1", Want: exclude(redirect.Exclusion{Ports: all, CIDRs: prefixes("192.168.0.0/16", "::1/128")})},
		{Key: "traffic.kuma.io/exclude-outbound-ips", Value: "10.0.0.0/40"},
		{Key: "traffic.kuma.io/drop-invalid-packets", Value: "yes", Want: func(r *redirect.Redirect) { r.DropInvalid = true }},
		{Key: "traffic.kuma.io/drop-invalid-packets", Value: "perhaps"},
		{Key: "traffic.kuma.io/iptables-logs", Value: "true", Want: func(r *redirect.Redirect) { r.Log = redirect.Log{Enabled: true, Level: 7} }},
		{Key: "traffic.kuma.io/iptables-logs", Value: "7"},
		{Key: "kuma.io/transparent-proxying-ip-family-mode", Value: "ipv4", Want: func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }},
		{Key: "kuma.io/transparent-proxying-ip-family-mode", Value: "DualStack", Want: same},
		{Key: "kuma.io/transparent-proxying-ip-family-mode", Value: "ipv6"},
		{Key: "kuma.io/gateway", Value: "enabled", Want: func(r *redirect.Redirect) { r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()} }},
		{Key: "kuma.io/gateway", Value: "builtin", Want: func(r *redirect.Redirect) { r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()} }},
		{Key: "kuma.io/gateway", Value: "disabled", Want: same},
		{Key: "kuma.io/gateway", Value: "delegated"},
		{Key: "kuma.io/transparent-proxying-inbound-port", Value: "16006", Want: func(r *redirect.Redirect) { r.Proxy.InboundPort = 16006 }},
		{Key: "kuma.io/transparent-proxying-inbound-port", Value: "0"},
		{Key: "kuma.io/transparent-proxying-outbound-port", Value: "16001", Want: func(r *redirect.Redirect) { r.Proxy.OutboundPort = 16001 }},
		{Key: "kuma.io/transparent-proxying-outbound-port", Value: "15001,15002"},
		{Key: "kuma.io/transparent-proxying-inbound-v6-port", Value: "0", Want: func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }},
		{Key: "kuma.io/transparent-proxying-inbound-v6-port", Value: "15010", Want: same},
		{Key: "kuma.io/transparent-proxying-inbound-v6-port", Value: "15006", Want: same},
		{Key: "kuma.io/transparent-proxying-inbound-v6-port", Value: "16010"},
		{Key: "kuma.io/transparent-proxying-inbound-v6-port", Value: "-"},
		{Key: "kuma.io/builtin-dns", Value: "enabled", Want: dns(captured)},
		{Key: "kuma.io/builtin-dns", Value: "disabled", Want: same},
		{Key: "kuma.io/builtin-dns", Value: "on"},
		{Key: "kuma.io/builtin-dns-port", Value: "16053", Want: same},
		{Key: "kuma.io/builtin-dns-port", Value: "0"},
		{Key: "traffic.kuma.io/exclude-outbound-tcp-ports-for-uids", Value: "22,80-90:7; ;443:8-9", Want: exclude(
			users(redirect.TCP, redirect.PortRanges(ruleset.Port(22), ruleset.PortRange{First: 80, Last: 90}), 7, 7), users(redirect.TCP, redirect.Ports(443), 8, 9))},
		{Key: "traffic.kuma.io/exclude-outbound-tcp-ports-for-uids", Value: "tcp:22:7"},
		{Key: "traffic.kuma.io/exclude-outbound-udp-ports-for-uids", Value: "53:7", Want: exclude(users(redirect.UDP, redirect.Ports(53), 7, 7))},
		{Key: "traffic.kuma.io/exclude-outbound-udp-ports-for-uids", Value: "53:root"},
		{Key: "kuma.io/builtindns", Value: "false", Want: same},
		{Key: "kuma.io/builtindns", Value: "true"},
		{Key: "kuma.io/builtindns", Value: "?"},
		{Key: "kuma.io/virtual-probes", Value: "enabled", Want: excludeInbound(9000)},
		{Key: "kuma.io/virtual-probes", Value: "disabled", Want: same},
		{Key: "kuma.io/virtual-probes", Value: "9000"},
		{Key: "kuma.io/virtual-probes-port", Value: "19000", Want: excludeInbound(19000)},
		{Key: "kuma.io/virtual-probes-port", Value: "0"},
	})
	dialecttest.Settings(t, kuma.New(), meshed(), kuma.DefaultRedirect(), []string{kuma.Config}, []dialecttest.Setting{
		config("kumaDPUser: 1000", func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{1000} }),
		config("ipFamilyMode: ipv4", func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }),
		config("dropInvalidPackets: true", func(r *redirect.Redirect) { r.DropInvalid = true }),
		config("log: {enabled: true, level: 4}", func(r *redirect.Redirect) { r.Log = redirect.Log{Enabled: true, Level: 4} }),
		config("redirect: {inbound: {enabled: false}}", func(r *redirect.Redirect) { r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()} }),
		config("redirect: {inbound: {port: 15106, includePorts: [80, 443]}}", func(r *redirect.Redirect) {
			r.Proxy.InboundPort, r.Inbound.Ports = 15106, redirect.Ports(80, 443)
		}),
		config("redirect: {inbound: {excludePorts: [\",22,,\"], excludePortsForIPs: [10.0.0.1]}}", func(r *redirect.Redirect) {
			r.Inbound.ExcludePorts, r.Inbound.ExcludeSources = redirect.Ports(22), prefixes("10.0.0.1/32")
		}),
		config("redirect: {outbound: {port: 15101, includePorts: [80], excludePorts: [443]}}", func(r *redirect.Redirect) {
			r.Proxy.OutboundPort, r.Outbound.CIDRs, r.Outbound.Ports = 15101, redirect.NoPrefixes(), redirect.Ports(80)
		}),
		config("redirect: {outbound: {enabled: false}}", func(r *redirect.Redirect) {
			r.Outbound.CIDRs, r.Loopback = redirect.NoPrefixes(), redirect.LoopbackCapture
		}),
		config("redirect: {outbound: {excludePortsForUIDs: [\"tcp:22:7\"], excludePortsForIPs: [fd00::/8]}}", exclude(
			users(redirect.TCP, redirect.Ports(22), 7, 7), redirect.Exclusion{Ports: all, CIDRs: prefixes("fd00::/8")})),
		config("redirect: {dns: {enabled: true, captureAll: true, port: 15153, skipConntrackZoneSplit: true}}",
			dns(redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15153, UDPOnly: true, OneZone: true})),
		config("redirect: {dns: {enabled: true, captureAll: true}, outbound: {insertRedirectInsteadOfAppend: true}}",
			dns(redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053, UDPOnly: true, TCPOutbound: true})),
		config("redirect: {inbound: {insertRedirectInsteadOfAppend: true}, outbound: {insertRedirectInsteadOfAppend: true}}", same),
		config("redirect: {inbound: {excludePortsForUIDs: [\"\", \" \"]}}", same),
		config("redirect: {dns: {enabled: true, captureAll: true}, outbound: {enabled: false}}", func(r *redirect.Redirect) {
			r.Outbound.CIDRs, r.Loopback, r.DNS = redirect.NoPrefixes(), redirect.LoopbackCapture, captured
		}),
		config("redirect: {outbound: {excludePortsForIPs: [\"::ffff:10.1.2.3\", \"::ffff:172.16.0.0/108\", \"::FFFF:0A01:0203\"]}}",
			exclude(redirect.Exclusion{Ports: all, CIDRs: prefixes("10.1.2.3/32", "172.16.0.0/12")})),
		config("redirect: {inbound: {excludePortsForIPs: \"::ffff:10.244.1.1,::ffff:0:0/96,fd00::1\"}}", func(r *redirect.Redirect) {
			r.Inbound.ExcludeSources = prefixes("10.244.1.1/32", "0.0.0.0/0", "fd00::1/128")
		}),
		config("redirect: {vnet: {networks: [\"docker0:::ffff:172.17.0.0/112\"]}}", func(r *redirect.Redirect) {
			r.VirtualNetworks = []redirect.VirtualNetwork{{Interface: "docker0", Local: netip.MustParsePrefix("172.17.0.0/16")}}
		}),
		config("redirect: {vnet: {networks: [\"docker0:172.17.0.0/16\", \"eth1:fd00::1/64\"]}}", func(r *redirect.Redirect) {
			r.VirtualNetworks = []redirect.VirtualNetwork{
				{Interface: "docker0", Local: netip.MustParsePrefix("172.17.0.0/16")}, {Interface: "eth1", Local: netip.MustParsePrefix("fd00::/64")},
			}
		}),
		config("kumaDPUser: [", nil),
	})
}

// TestRetiredAnnotations: those of Kuma up to 2.8 add up with today's, as in its 2.3 to 2.8, and a warning names that; those that no
// version since reads have one too.
func TestRetiredAnnotations(t *testing.T) {
	built, err := kuma.New().Redirect(meshed(withoutYAML, func(p *corev1.Pod) {
		p.Annotations["traffic.kuma.io/exclude-outbound-ports-for-uids"] = "tcp:22:7"
		p.Annotations["traffic.kuma.io/exclude-outbound-tcp-ports-for-uids"] = "5432:1234"
		p.Annotations["traffic.kuma.io/exclude-outbound-udp-ports-for-uids"] = "53:1234"
	}), nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []redirect.Exclusion{
		userExclusion(redirect.TCP, redirect.Ports(22), 7, 7), userExclusion(redirect.TCP, redirect.Ports(5432), 1234, 1234), userExclusion(redirect.UDP, redirect.Ports(53), 1234, 1234),
	}, built.Redirect.Outbound.Exclude)
	deprecated := 0
	for _, w := range built.Warnings {
		if w.Code == warning.Deprecated {
			assert.Contains(t, w.Text, "use traffic.kuma.io/exclude-outbound-ports-for-uids")
			deprecated++
		}
	}
	assert.Equal(t, 2, deprecated)

	plan, err := kuma.New().Plan(dialect.Subject{Pod: meshed(withoutYAML, func(p *corev1.Pod) { p.Annotations["kuma.io/builtindnsport"] = "16053" })}, dialect.Options{})
	require.NoError(t, err)
	assert.Contains(t, strings.Join(plan.Warnings.Texts(), "\n"), "annotation kuma.io/builtindnsport=\"16053\" has no effect: today's versions of the mesh read annotation kuma.io/builtin-dns-port")
}

// Every bad element of a list is named, not the first alone.
func TestEveryBadElement(t *testing.T) {
	for key, list := range map[string]struct{ good, sep, bad1, bad2 string }{
		"traffic.kuma.io/exclude-outbound-ports":          {"3306", ",", "80a", "70000"},
		"traffic.kuma.io/exclude-inbound-ips":             {"10.0.0.1", ",", "1.2.3", "::ffff:10.0.0.0/95"},
		"traffic.kuma.io/exclude-outbound-ports-for-uids": {"tcp:22:1000", ";", "tcp:1:root", "sctp:1:5"},
	} {
		_, err := kuma.New().Redirect(meshed(withoutYAML, func(p *corev1.Pod) {
			p.Annotations[key] = strings.Join([]string{list.good, list.bad1, list.bad2}, list.sep)
		}), nil, nil)
		require.ErrorContains(t, err, strconv.Quote(list.bad1))
		require.ErrorContains(t, err, strconv.Quote(list.bad2))
		var e *redirect.SettingError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, key, e.Key)
	}
}

// Each wrong value of the YAML is refused by its place.
func TestRefusedYAML(t *testing.T) {
	for place, tt := range map[string]struct{ yaml, value string }{
		"kumaDPUser":                            {"kumaDPUser: root", "root"},
		"ipFamilyMode":                          {"ipFamilyMode: ipv5", "ipv5"},
		"log.level":                             {"log: {level: 8}", "8"},
		"redirect.inbound.port":                 {"redirect: {inbound: {port: 0}}", "0"},
		"redirect.inbound.includePorts":         {"redirect: {inbound: {includePorts: [http]}}", "http"},
		"redirect.inbound.excludePorts":         {"redirect: {inbound: {excludePorts: [1, 65536]}}", "1,65536"},
		"redirect.inbound.excludePortsForIPs":   {"redirect: {inbound: {excludePortsForIPs: [x]}}", "x"},
		"redirect.inbound.excludePortsForUIDs":  {"redirect: {inbound: {excludePortsForUIDs: [\"1\"]}}", "1"},
		"redirect.outbound.port":                {"redirect: {outbound: {port: 70000}}", "70000"},
		"redirect.outbound.includePorts":        {"redirect: {outbound: {includePorts: \"80-90\"}}", "80-90"},
		"redirect.outbound.excludePorts":        {"redirect: {outbound: {excludePorts: [-1]}}", "-1"},
		"redirect.outbound.excludePortsForUIDs": {"redirect: {outbound: {excludePortsForUIDs: [\"tcp:1:*\"]}}", "tcp:1:*"},
		"redirect.outbound.excludePortsForIPs":  {"redirect: {outbound: {excludePortsForIPs: [\"1.2.3\"]}}", "1.2.3"},
		"redirect.outbound.excludePortsForIPs ": {"redirect: {outbound: {excludePortsForIPs: [\"::ffff:10.0.0.0/95\"]}}", "::ffff:10.0.0.0/95"},
		"redirect.vnet.networks ":               {"redirect: {vnet: {networks: [\"a:::ffff:10.0.0.0/64\"]}}", "a:::ffff:10.0.0.0/64"},
		"redirect.dns.port":                     {"redirect: {dns: {port: dns}}", "dns"},
		"redirect.vnet.networks":                {"redirect: {vnet: {networks: [\"+:10.0.0.0/8\"]}}", "+:10.0.0.0/8"},
	} {
		_, err := kuma.New().Redirect(meshed(func(p *corev1.Pod) { p.Annotations[kuma.Config] = tt.yaml }), nil, nil)
		var e *redirect.SettingError
		require.True(t, errors.As(err, &e), "%s: %v", place, err)
		assert.Equal(t, kuma.Config+"."+strings.TrimSpace(place), e.Key)
		assert.Equal(t, tt.value, e.Value)
	}
}

func TestResolvers(t *testing.T) {
	pod := meshed(func(p *corev1.Pod) { p.Annotations[kuma.Config] = "redirect: {dns: {enabled: true}}" })
	built, err := kuma.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.True(t, built.Redirect.DNS.Servers.All())
	assert.Len(t, built.Warnings, 1)

	pod.Spec.DNSPolicy, pod.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"10.96.0.10", "fd00:96::10"}}
	built, err = kuma.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, prefixes("10.96.0.10/32", "fd00:96::10/128"), built.Redirect.DNS.Servers)
	assert.Empty(t, built.Warnings)
}

func TestUserOfTheContainer(t *testing.T) {
	user := int64(1000750000)
	pod := meshed(func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &user} })
	built, err := kuma.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []uint32{5678}, built.Redirect.Proxy.UIDs, "the YAML says the default by saying nothing")
	plan, err := kuma.New().Plan(dialect.Subject{Pod: pod}, dialect.Options{})
	require.NoError(t, err)
	assert.Equal(t, []string{`container "kuma-sidecar" runs as user 1000750000, and the rules know the proxy by user 5678: its connections would be redirected to itself`}, plan.Warnings.Texts())

	pod.Annotations[kuma.Config] = "kumaDPUser: \"1000750000\""
	built, err = kuma.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []uint32{1000750000}, built.Redirect.Proxy.UIDs)
	assert.Empty(t, built.Warnings)

	withoutYAML(pod)
	built, err = kuma.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []uint32{1000750000}, built.Redirect.Proxy.UIDs)
	pod.Annotations["kuma.io/sidecar-uid"] = "1000"
	built, err = kuma.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []uint32{1000}, built.Redirect.Proxy.UIDs)
}

// What users of a pod may do past the mesh, as the injector has written it down.
func ExampleNew() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{
			"kuma.io/sidecar-injected": "true",
			"traffic.kuma.io/transparent-proxy-config": `
kumaDPUser: "5678"
redirect:
  inbound: {excludePorts: [22]}
  outbound: {excludePortsForUIDs: ["tcp:22:1000-2000", "udp:53:1001"]}
`,
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "kuma-sidecar"}, {Name: "cart"}}},
	}
	d := kuma.New("kuma-system")
	fmt.Println(d.Decide(pod, nil).Reason)
	built, err := d.Redirect(pod, nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(built.Redirect)
	// Output:
	// selected
	// REDIRECT in * -> :15006 except 22; out * -> :15001 except tcp ports 22 of uid 1000-2000 except udp ports 53 of uid 1001; proxy uid [5678] gid []; ipv4 capture ipv6 capture
}
