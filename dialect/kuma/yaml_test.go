package kuma_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/redirect"
)

// injected is a pod as Kuma's injector makes it: it has merged users'
// annotations into the YAML, added its own ports, and written annotations.
func injected(annotations map[string]string) *corev1.Pod {
	return meshed(func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			kuma.SidecarInjected: "true", "kuma.io/sidecar-uid": "5678", "kuma.io/transparent-proxying-ip-family-mode": "dualstack",
			"kuma.io/transparent-proxying-inbound-port": "15006", "kuma.io/transparent-proxying-outbound-port": "15001", "kuma.io/application-probe-proxy-port": "9902",
			"kuma.io/builtin-dns": "enabled", "kuma.io/builtin-dns-port": "15053", "kuma.io/virtual-probes": "enabled", "kuma.io/virtual-probes-port": "9000",
			"traffic.kuma.io/exclude-inbound-ports": "22", "traffic.kuma.io/exclude-outbound-ports": "3306,5432", "traffic.kuma.io/exclude-outbound-ips": "192.168.0.0/16",
			"traffic.kuma.io/exclude-inbound-ips": "10.244.1.1,fd00:10:244::1", "traffic.kuma.io/exclude-outbound-ports-for-uids": "tcp:22:1000-2000;53:1001",
			kuma.Config: `
cniMode: true
comments: {disabled: false}
dropInvalidPackets: false
ebpf: {bpffsPath: /run/kuma/bpf, cgroupPath: /sys/fs/cgroup, enabled: false, instanceIP: "", tcAttachIface: ""}
ipFamilyMode: dualstack
iptablesExecutables: {}
kumaDPUser: "5678"
log: {enabled: false, level: 7}
redirect:
  dns: {captureAll: true, enabled: true, port: 15053, resolvConfigPath: /etc/resolv.conf, skipConntrackZoneSplit: false}
  inbound: {enabled: true, excludePorts: [22, 9902], excludePortsForIPs: [10.244.1.1, "fd00:10:244::1"], includePorts: [], port: 15006, insertRedirectInsteadOfAppend: false}
  outbound: {enabled: true, excludePorts: [3306, 5432], excludePortsForIPs: [192.168.0.0/16], excludePortsForUIDs: ["tcp:22:1000-2000", "53:1001"], port: 15001}
  vnet: {networks: []}
retry: {maxRetries: 4, sleepBetweenRetries: 2s}
storeFirewalld: false
verbose: true
wait: 5
waitInterval: 0
`,
		}
		for key, value := range annotations {
			p.Annotations[key] = value
		}
	})
}

func build(t *testing.T, p *corev1.Pod) dialect.Reading {
	t.Helper()
	built, err := kuma.New().Redirect(p, nil, nil)
	require.NoError(t, err)
	return built
}

// Where the YAML is there, no annotation changes a thing, whatever it says and
// whenever it was written. One that says something else is told.
func TestYAMLAloneCounts(t *testing.T) {
	want := build(t, injected(nil))
	assert.Equal(t, redirect.Ports(22, 9902), want.Redirect.Inbound.ExcludePorts)
	assert.Empty(t, want.Warnings, "the injector's own annotations are no news")

	tests := []struct {
		key, value string
		told       bool
	}{
		{"traffic.kuma.io/exclude-inbound-ports", "", false},
		{"traffic.kuma.io/exclude-inbound-ports", ",", false},
		{"traffic.kuma.io/exclude-inbound-ports", "22,9902", false},
		{"traffic.kuma.io/exclude-inbound-ports", "22,8080", true},
		{"traffic.kuma.io/exclude-inbound-ports", "http", true},
		{"kuma.io/application-probe-proxy-port", "0", false},
		{"kuma.io/application-probe-proxy-port", "9001", true},
		{"traffic.kuma.io/exclude-inbound-ips", "", false},
		{"traffic.kuma.io/exclude-inbound-ips", "fd00:10:244::1", false},
		{"traffic.kuma.io/exclude-inbound-ips", "0.0.0.0/0", true},
		{"traffic.kuma.io/exclude-inbound-ips", "gateway", true},
		{"traffic.kuma.io/exclude-outbound-ports", "", false},
		{"traffic.kuma.io/exclude-outbound-ports", "5432", false},
		{"traffic.kuma.io/exclude-outbound-ports", "443", true},
		{"traffic.kuma.io/exclude-outbound-ports", "1-65535", true},
		{"traffic.kuma.io/exclude-outbound-ports-for-uids", "", false},
		{"traffic.kuma.io/exclude-outbound-ports-for-uids", "53:1001", false},
		{"traffic.kuma.io/exclude-outbound-ports-for-uids", "0", true},
		{"traffic.kuma.io/exclude-outbound-ports-for-uids", "*:*:*", true},
		{"traffic.kuma.io/exclude-outbound-ips", ",", false},
		{"traffic.kuma.io/exclude-outbound-ips", "192.168.0.0/16", false},
		{"traffic.kuma.io/exclude-outbound-ips", "0.0.0.0/0,::/0", true},
		{"kuma.io/sidecar-uid", "1000", true},
		{"kuma.io/sidecar-uid", "root", true},
		{"kuma.io/transparent-proxying-ip-family-mode", "ipv4", true},
		{"traffic.kuma.io/drop-invalid-packets", "true", true},
		{"traffic.kuma.io/drop-invalid-packets", "no", false},
		{"traffic.kuma.io/iptables-logs", "true", true},
		{"traffic.kuma.io/iptables-logs", "maybe", true},
		{"kuma.io/gateway", "enabled", true},
		{"kuma.io/gateway", "disabled", false},
		{"kuma.io/transparent-proxying-inbound-port", "1", true},
		{"kuma.io/transparent-proxying-outbound-port", "1", true},
		{"kuma.io/builtin-dns", "disabled", true},
		{"kuma.io/builtin-dns-port", "5353", true},
		{"kuma.io/transparent-proxying-inbound-v6-port", "0", false},
		{"kuma.io/virtual-probes", "disabled", false},
		{"kuma.io/builtindns", "true", false},
	}
	for _, tt := range tests {
		t.Run(tt.key+"="+strings.ReplaceAll(tt.value, "/", "|"), func(t *testing.T) {
			built := build(t, injected(map[string]string{tt.key: tt.value}))
			assert.Equal(t, want.Redirect, built.Redirect)
			assert.Equal(t, want.Origins, built.Origins)
			var warnings []string
			if tt.told {
				warnings = []string{fmt.Sprintf("annotation %s=%q has no effect: annotation %s, which says otherwise, alone counts", tt.key, tt.value, kuma.Config)}
			}
			assert.Equal(t, warnings, built.Warnings.Texts())
		})
	}
}

// An annotation that is not read costs no work, however long it is.
func TestLongAnnotationsAreNotCompared(t *testing.T) {
	want := build(t, injected(nil))
	built := build(t, injected(map[string]string{"traffic.kuma.io/exclude-outbound-ips": strings.Repeat("10.0.0.1,", 1000)}))
	assert.Equal(t, want.Redirect, built.Redirect)
	assert.Equal(t, []string{"annotation " + "traffic.kuma.io/exclude-outbound-ips" + " has no effect: annotation " + kuma.Config +
		" alone counts; with 9000 bytes it is too long to say whether they agree"}, built.Warnings.Texts())
}

// What is about inbound connections is no news where none are captured: the
// injector does not merge it then.
func TestNothingToTellOfAGateway(t *testing.T) {
	p := injected(map[string]string{"kuma.io/gateway": "enabled", "traffic.kuma.io/exclude-inbound-ports": "8080", "traffic.kuma.io/exclude-inbound-ips": "10.0.0.1", "kuma.io/transparent-proxying-inbound-port": "1"})
	p.Annotations[kuma.Config] = strings.Replace(p.Annotations[kuma.Config], "inbound: {enabled: true", "inbound: {enabled: false", 1)
	built := build(t, p)
	assert.Equal(t, redirect.Inbound{Ports: redirect.NoPorts()}, built.Redirect.Inbound)
	assert.Empty(t, built.Warnings)
}

// No key of the YAML is passed over without a word.
func TestKeysWithoutEffect(t *testing.T) {
	for yaml, want := range map[string][]string{
		"redirect: {Outbound: {ENABLED: true}}": nil,
		"ebpf: {enabled: true}":                 {"annotation " + kuma.Config + ".ebpf has no effect: the pod is captured by rules"},
		"ebpf: {enabled: false, other: 1}":      nil,
		"redirect: {outbound: {excludePort: [22]}, dns: {to: 1}}\nzone: [1]": {
			"annotation " + kuma.Config + ` has keys without effect, since nothing is known of them: "redirect.dns.to", "redirect.outbound.excludePort", "zone"`},
		"{a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7}": {
			"annotation " + kuma.Config + ` has keys without effect, since nothing is known of them: "a", "b", "c", "d", "e", and 2 more`},
		strings.Repeat("x", 100) + ": 1": {
			"annotation " + kuma.Config + ` has keys without effect, since nothing is known of them: "` + strings.Repeat("x", 64) + `"`},
	} {
		built := build(t, meshed(func(p *corev1.Pod) { p.Annotations[kuma.Config] = yaml }))
		assert.Equal(t, kuma.DefaultRedirect(), built.Redirect, yaml)
		assert.Equal(t, want, built.Warnings.Texts(), yaml)
	}
}

// How annotations of Kuma 2.x work together, where there is no YAML.
func TestWithoutYAML(t *testing.T) {
	dns := func(port uint16) func(*redirect.Redirect) {
		return func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: port, UDPOnly: true}
		}
	}
	ports := func(ports ...uint16) func(*redirect.Redirect) {
		return func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(ports...) }
	}
	tests := []struct {
		name        string
		annotations map[string]string
		want        func(*redirect.Redirect)
	}{
		{"nothing", nil, func(*redirect.Redirect) {}},
		{"look-ups", map[string]string{"kuma.io/builtin-dns": "true", "kuma.io/builtin-dns-port": "16053"}, dns(16053)},
		{"look-ups under both names", map[string]string{"kuma.io/builtin-dns": "enabled", "kuma.io/builtindns": "enabled"}, dns(15053)},
		{"no look-ups under the newer name", map[string]string{"kuma.io/builtin-dns": "disabled", "kuma.io/builtindns": "enabled"}, func(*redirect.Redirect) {}},
		{"virtual probes", map[string]string{"kuma.io/virtual-probes": "enabled", "kuma.io/virtual-probes-port": "19000", "traffic.kuma.io/exclude-inbound-ports": "22"}, ports(22, 19000)},
		{"no virtual probes", map[string]string{"kuma.io/virtual-probes": "disabled", "kuma.io/virtual-probes-port": "19000", "traffic.kuma.io/exclude-inbound-ports": "22"}, ports(22)},
		{"a probe proxy instead", map[string]string{"kuma.io/virtual-probes": "enabled", "kuma.io/virtual-probes-port": "9000", "kuma.io/application-probe-proxy-port": "9001"}, ports(9001)},
		{"no probe proxy", map[string]string{"kuma.io/virtual-probes": "enabled", "kuma.io/virtual-probes-port": "9000", "kuma.io/application-probe-proxy-port": "0"}, ports(9000)},
		{"no probes at all", map[string]string{"kuma.io/virtual-probes-port": "9000", "kuma.io/application-probe-proxy-port": "0"}, func(*redirect.Redirect) {}},
		{"another inbound port of both families", map[string]string{"kuma.io/transparent-proxying-inbound-port": "16006", "kuma.io/transparent-proxying-inbound-v6-port": "16006"},
			func(r *redirect.Redirect) { r.Proxy.InboundPort = 16006 }},
		{"the mode decides of IPv6", map[string]string{"kuma.io/transparent-proxying-ip-family-mode": "dualstack", "kuma.io/transparent-proxying-inbound-v6-port": "0"}, func(*redirect.Redirect) {}},
		{"a port for what is not captured", map[string]string{"kuma.io/transparent-proxying-ip-family-mode": "ipv4", "kuma.io/transparent-proxying-inbound-v6-port": "16010"},
			func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			built := build(t, meshed(withoutYAML, func(p *corev1.Pod) {
				for key, value := range tt.annotations {
					p.Annotations[key] = value
				}
			}))
			want := kuma.DefaultRedirect()
			tt.want(&want)
			assert.Equal(t, want, built.Redirect)
			assert.Equal(t, []string{"annotation " + kuma.Config + " is absent: the pod is configured by its other annotations"}, built.Warnings.Texts())
		})
	}
}

// Everything wrong is said at once.
func TestWithoutYAMLAllIsRefusedAtOnce(t *testing.T) {
	wrong := []string{"kuma.io/builtin-dns", "kuma.io/builtin-dns-port", "kuma.io/virtual-probes", "kuma.io/virtual-probes-port", "kuma.io/transparent-proxying-inbound-port", "kuma.io/transparent-proxying-inbound-v6-port", "kuma.io/sidecar-uid"}
	_, err := kuma.New().Redirect(meshed(withoutYAML, func(p *corev1.Pod) {
		for _, key := range wrong {
			p.Annotations[key] = "x"
		}
	}), nil, nil)
	for _, key := range wrong {
		assert.ErrorContains(t, err, "annotation "+key+`="x"`)
	}
}

// TestReadOnce: a YAML that mentions trial runs is read no more often than one that does not.
func TestReadOnce(t *testing.T) {
	allocations := func(remark string) float64 {
		yaml := "# " + remark + "\nredirect: {inbound: {excludePorts: [" + strings.Repeat("8080,", 2000) + "8080]}}\n"
		pod := meshed(func(p *corev1.Pod) { p.Annotations[kuma.Config] = yaml })
		return testing.AllocsPerRun(3, func() {
			mesh := kuma.New()
			_, out := mesh.Policy.RuleOut(pod.Annotations)
			require.False(t, out)
			plan, err := mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{})
			require.NoError(t, err)
			require.True(t, plan.Decision.Selected)
		})
	}
	assert.InEpsilon(t, allocations("no word"), allocations("dryRun!"), 0.1)
}

// A value of another kind than the key's refuses the pod, whatever the key.
func TestYAMLOfAnotherKind(t *testing.T) {
	for _, yaml := range []string{
		"[]", "5", "log: 5", "ebpf: 5", "redirect: {inbound: []}", "dropInvalidPackets: 1", "dropInvalidPackets: []", "dryRun: {}",
		"kumaDPUser: true", "kumaDPUser: []", "redirect: {vnet: {networks: {}}}", "redirect: {vnet: {networks: [[]]}}",
		"redirect: {outbound: {excludePorts: true}}", "redirect: {inbound: {insertRedirectInsteadOfAppend: 1}}",
	} {
		_, err := kuma.New().Redirect(meshed(func(p *corev1.Pod) { p.Annotations[kuma.Config] = yaml }), nil, nil)
		var setting *redirect.SettingError
		require.ErrorAs(t, err, &setting, yaml)
		assert.Equal(t, kuma.Config, setting.Key, yaml)
	}
	// Null and empty values mean nothing.
	built := build(t, meshed(func(p *corev1.Pod) {
		p.Annotations[kuma.Config] = "log: null\nebpf: null\nkumaDPUser: ''\nipFamilyMode: null\nredirect: {outbound: {enabled: null, excludePorts: [], excludePortsForIPs: [null, '']}}"
	}))
	assert.Equal(t, kuma.DefaultRedirect(), built.Redirect)
}

// What is said about an annotation has its value as it was written.
func TestOriginHasTheAnnotationsText(t *testing.T) {
	const key, users = "traffic.kuma.io/exclude-outbound-ports-for-uids", "tcp:22:1000-2000;53:1001"
	with := func(value string) *corev1.Pod {
		return meshed(withoutYAML, func(p *corev1.Pod) { p.Annotations[key] = value })
	}
	assert.Contains(t, build(t, with(users)).Origins,
		redirect.Origin{Field: "outbound.exclude", Source: redirect.FromAnnotation, Key: key, Value: users})
	_, err := kuma.New().Redirect(with(users+";x"), nil, nil)
	var setting *redirect.SettingError
	require.ErrorAs(t, err, &setting)
	assert.Equal(t, users+";x", setting.Value)
}
