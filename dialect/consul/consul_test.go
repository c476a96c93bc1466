package consul_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// meshed is an injected pod with the given annotations.
func meshed(config, dualStack string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{
			consul.InjectStatus:           "injected",
			consul.TransparentProxyStatus: consul.StatusWaiting,
			consul.RedirectTrafficConfig:  config,
			consul.DualStack:              dualStack,
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "consul-dataplane"}}},
	}
}

func TestSelection(t *testing.T) {
	d, yes := consul.New("kube-system"), true
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		want   status.Code
	}{
		{"injected", func(*corev1.Pod) {}, status.CodeSelected},
		{"injected by catalog v2", func(p *corev1.Pod) {
			delete(p.Annotations, consul.InjectStatus)
			p.Annotations["consul.hashicorp.com/mesh-inject-status"] = "injected"
		}, status.CodeSelected},
		{"not injected", func(p *corev1.Pod) { delete(p.Annotations, consul.InjectStatus) }, status.CodeNotInjected},
		{"an empty status", func(p *corev1.Pod) { p.Annotations[consul.InjectStatus] = "" }, status.CodeNotInjected},
		{"no transparent proxy", func(p *corev1.Pod) { delete(p.Annotations, consul.TransparentProxyStatus) }, status.CodeNotInjected},
		{"an empty one", func(p *corev1.Pod) { p.Annotations[consul.TransparentProxyStatus] = "" }, status.CodeNotInjected},
		{"excluded namespace", func(p *corev1.Pod) { p.Namespace = "kube-system" }, status.CodeExcludedNamespace},
		{"host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, status.CodeHostNetwork},
		{"rules set from inside", initContainer(&corev1.SecurityContext{
			Privileged: &yes, Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}},
		}), status.CodeInitContainer},
		{"the init container of a pod with a plugin", initContainer(&corev1.SecurityContext{
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}), status.CodeSelected},
	}
	for _, tt := range tests {
		pod := meshed("{}", "false")
		tt.change(pod)
		assert.Equal(t, tt.want, d.Decide(pod, nil).Reason, tt.name)
	}
}

func initContainer(sc *corev1.SecurityContext) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "consul-connect-inject-init", SecurityContext: sc})
	}
}

func TestConfig(t *testing.T) {
	prefixes := redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("fd00::/8"))
	to := func(s string) []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(s)} }
	tests := []struct {
		config, dualStack string
		want              func(*redirect.Redirect)
	}{
		{`{}`, "false", func(*redirect.Redirect) {}},
		{`{}`, "true", func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyCapture }},
		{`{"ProxyUserID":"1000750000"}`, "false", func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{1000750000} }},
		{`{"proxyinboundport":20001}`, "false", func(r *redirect.Redirect) { r.Proxy.InboundPort = 20001 }},
		{`{"ProxyOutboundPort":15100}`, "false", func(r *redirect.Redirect) { r.Proxy.OutboundPort = 15100 }},
		{`{"ExcludeInboundPorts":["22","8000:8100"]}`, "false", func(r *redirect.Redirect) {
			r.Inbound.ExcludePorts = redirect.PortRanges(ruleset.Port(22), ruleset.PortRange{First: 8000, Last: 8100})
		}},
		{`{"ExcludeOutboundPorts":["3306","443","443"]}`, "false", func(r *redirect.Redirect) { r.Outbound.ExcludePorts = redirect.Ports(443, 3306) }},
		{`{"ExcludeOutboundCIDRs":["10.0.0.0/8","10.1.2.3","fd00::/8"]}`, "true", func(r *redirect.Redirect) {
			r.IPv6 = redirect.FamilyCapture
			r.Outbound.ExcludeCIDRs = prefixes
		}},
		{`{"ExcludeUIDs":["5996","1000-2000","5996"]}`, "false", func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{{
				Ports: redirect.AllPorts(), CIDRs: redirect.AllPrefixes(), UIDs: []redirect.IDRange{{First: 1000, Last: 2000}, redirect.IDRange{First: 5996, Last: 5996}},
			}}
		}},
		{`{"ConsulDNSIP":"10.0.0.53"}`, "false", func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), To: to("10.0.0.53:0"), Everyone: true}
		}},
		{`{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600}`, "false", func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: redirect.Prefixes(netip.MustParsePrefix("127.0.0.1/32")), To: to("127.0.0.1:8600"), Everyone: true}
		}},
		{`{"ConsulDNSPort":8600}`, "true", func(r *redirect.Redirect) {
			r.IPv6 = redirect.FamilyCapture
			r.DNS = redirect.DNS{Servers: redirect.Prefixes(netip.MustParsePrefix("::1/128")), To: to("[::1]:8600"), Everyone: true}
		}},
		{`{"NetNS":"/x","IptablesProvider":null}`, "0", func(*redirect.Redirect) {}},
	}
	for _, tt := range tests {
		built, err := consul.New().Redirect(meshed(complete(t, tt.config), tt.dualStack), nil, dialecttest.Addrs())
		require.NoError(t, err, tt.config)
		want := consul.DefaultRedirect()
		tt.want(&want)
		assert.Equal(t, want, built.Redirect, tt.config)
		assert.Empty(t, built.Warnings, tt.config)
	}
}

// complete adds what Consul requires.
func complete(t *testing.T, config string) string {
	t.Helper()
	all := map[string]any{"ProxyUserID": "5995", "ProxyInboundPort": 20000}
	var some map[string]any
	require.NoError(t, json.Unmarshal([]byte(config), &some))
	for k, v := range some {
		if k == "proxyinboundport" { // of two spellings of a key the last counts
			delete(all, "ProxyInboundPort")
		}
		all[k] = v
	}
	b, err := json.Marshal(all)
	require.NoError(t, err)
	return string(b)
}

func TestRefused(t *testing.T) {
	tests := []struct{ config, dualStack, key, value string }{
		{`{"ProxyUserID":""}`, "false", "ProxyUserID", ""},
		{`{"ProxyUserID":"0"}`, "false", "ProxyUserID", "0"},
		{`{"ProxyUserID":"envoy"}`, "false", "ProxyUserID", "envoy"},
		{`{"ProxyUserID":"5995 -j ACCEPT"}`, "false", "ProxyUserID", "5995 -j ACCEPT"},
		{`{"ProxyInboundPort":0}`, "false", "ProxyInboundPort", "0"},
		{`{"ProxyInboundPort":65536}`, "false", "ProxyInboundPort", "65536"},
		{`{"ProxyOutboundPort":-1}`, "false", "ProxyOutboundPort", "-1"},
		{`{"ExcludeInboundPorts":["22","http"]}`, "false", "ExcludeInboundPorts", "22,http"},
		{`{"ExcludeInboundPorts":["90:80"]}`, "false", "ExcludeInboundPorts", "90:80"},
		{`{"ExcludeOutboundPorts":["1,2"]}`, "false", "ExcludeOutboundPorts", "1,2"},
		{`{"ExcludeOutboundPorts":[""]}`, "false", "ExcludeOutboundPorts", ""},
		{`{"ExcludeOutboundCIDRs":["10.0.0.0/33"]}`, "false", "ExcludeOutboundCIDRs", "10.0.0.0/33"},
		{`{"ExcludeOutboundCIDRs":["db.example"]}`, "false", "ExcludeOutboundCIDRs", "db.example"},
		{`{"ExcludeUIDs":["root"]}`, "false", "ExcludeUIDs", "root"},
		{`{"ExcludeUIDs":["2-1"]}`, "false", "ExcludeUIDs", "2-1"},
		{`{"ConsulDNSIP":"dns"}`, "false", "ConsulDNSIP", "dns"},
		{`{"ConsulDNSIP":"fd00::53"}`, "false", "ConsulDNSIP", "fd00::53"},
		{`{"ConsulDNSIP":"10.0.0.53"}`, "true", "ConsulDNSIP", "10.0.0.53"},
		{`{"ConsulDNSPort":65536}`, "false", "ConsulDNSPort", "65536"},
	}
	for _, tt := range tests {
		_, err := consul.New().Redirect(meshed(complete(t, tt.config), tt.dualStack), nil, nil)
		var e *redirect.SettingError
		require.True(t, errors.As(err, &e), "%s: %v", tt.config, err)
		assert.Equal(t, consul.RedirectTrafficConfig+"."+tt.key, e.Key)
		assert.Equal(t, tt.value, e.Value)
	}
}

// Every bad element of a list is named, not the first alone.
func TestEveryBadElement(t *testing.T) {
	for key, bad := range map[string][]string{
		"ExcludeInboundPorts": {"80a", "70000", "90:80"}, "ExcludeOutboundCIDRs": {"10.0.0.0/33", "db.example"}, "ExcludeUIDs": {"root", "2-1"},
	} {
		list, err := json.Marshal(append([]string{"22"}, bad...))
		require.NoError(t, err)
		_, err = consul.New().Redirect(meshed(complete(t, `{"`+key+`":`+string(list)+`}`), "false"), nil, nil)
		for _, element := range bad {
			assert.ErrorContains(t, err, strconv.Quote(element))
		}
	}
}

func TestAnnotationsRefused(t *testing.T) {
	good := complete(t, "{}")
	tests := []struct {
		name, key string
		change    func(map[string]string)
	}{
		{"no configuration", consul.RedirectTrafficConfig, func(a map[string]string) { delete(a, consul.RedirectTrafficConfig) }},
		{"no JSON", consul.RedirectTrafficConfig, func(a map[string]string) { a[consul.RedirectTrafficConfig] = "{" }},
		{"another type", consul.RedirectTrafficConfig, func(a map[string]string) { a[consul.RedirectTrafficConfig] = `{"ProxyUserID":5995}` }},
		{"something behind it", consul.RedirectTrafficConfig, func(a map[string]string) { a[consul.RedirectTrafficConfig] = good + "x" }},
		{"no dual-stack", consul.DualStack, func(a map[string]string) { delete(a, consul.DualStack) }},
		{"no boolean", consul.DualStack, func(a map[string]string) { a[consul.DualStack] = "yes" }},
	}
	for _, tt := range tests {
		pod := meshed(good, "false")
		tt.change(pod.Annotations)
		_, err := consul.New().Redirect(pod, nil, nil)
		var e *redirect.SettingError
		require.True(t, errors.As(err, &e), tt.name)
		assert.Equal(t, tt.key, e.Key, tt.name)
		assert.Equal(t, pod.Annotations[tt.key], e.Value, tt.name)
	}
}

func TestUnknownKeysWarn(t *testing.T) {
	built, err := consul.New().Redirect(meshed(complete(t, `{"ExcludeHosts":["x"]}`), "false"), nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"annotation consul.hashicorp.com/redirect-traffic-config.ExcludeHosts is not known, so it does nothing"}, built.Warnings.Texts())
}

// TestOwnContainers: the proxies are those of Consul's names, and not who is named like them.
func TestOwnContainers(t *testing.T) {
	uid := int64(5995)
	tests := map[string]struct {
		services   string
		containers []string
		bypass     []string
	}{
		"one service":                       {"web", []string{"consul-dataplane", "web"}, []string{"web"}},
		"no word of services":               {"", []string{"consul-dataplane", "consul-dataplane-x"}, []string{"consul-dataplane-x"}},
		"one service, a proxy of another":   {"web", []string{"consul-dataplane", "consul-dataplane-web"}, []string{"consul-dataplane-web"}},
		"several services":                  {"web,admin", []string{"consul-dataplane-web", "consul-dataplane-admin"}, nil},
		"several services, and one besides": {"web,admin", []string{"consul-dataplane-web", "consul-dataplane-admin", "consul-dataplane-x", "consul-dataplane"}, []string{"consul-dataplane-x", "consul-dataplane"}},
		"a pattern for a service":           {"*,web", []string{"consul-dataplane-x"}, []string{"consul-dataplane-x"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := meshed(complete(t, "{}"), "false")
			if tt.services != "" {
				pod.Annotations["consul.hashicorp.com/connect-service"] = tt.services
			}
			pod.Spec.Containers = nil
			for _, c := range tt.containers {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c, SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}})
			}
			off := redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: redirect.PresenceAbsent}
			plan, err := consul.New().Plan(dialect.Subject{Pod: pod, Kernel: off}, dialect.Options{})
			require.NoError(t, err)
			var got []string
			for _, b := range plan.Bypasses {
				got = append(got, b.Container)
			}
			assert.Equal(t, tt.bypass, got)
			_, err = consul.New().Plan(dialect.Subject{Pod: pod}, dialect.Options{RefuseProxyUID: true})
			assert.Equal(t, tt.bypass != nil, err != nil)
		})
	}
}

// A pod of Consul's; the second configuration would have reached iptables.
func ExampleNew() {
	for _, config := range []string{
		`{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ExcludeOutboundPorts": ["3306"], "ConsulDNSPort": 8600}`,
		`{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ExcludeOutboundPorts": ["3306 -j ACCEPT"]}`,
	} {
		built, err := consul.New().Redirect(meshed(config, "false"), nil, nil)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(built.Redirect)
	}
	// Output:
	// REDIRECT in * -> :20000; out * -> :15001 except ports 3306; dns 127.0.0.1/32 -> [127.0.0.1:8600]; proxy uid [5995] gid []; ipv4 capture ipv6 pass
	// consul configuration of pod shop/cart: annotation consul.hashicorp.com/redirect-traffic-config.ExcludeOutboundPorts="3306 -j ACCEPT": "3306 -j ACCEPT" is not a port from 0 to 65535 (allowed: ports from 0 to 65535, and ranges such as 8000:8100)
}

// A sandbox of Nomad's: the same JSON from CNI_ARGS, where an annotation of a pod says nothing.
func TestSandbox(t *testing.T) {
	mesh := consul.New("shop")
	_, ok := mesh.ForSandbox(map[string]string{"K8S_POD_NAME": "cart"})
	assert.False(t, ok)

	args := map[string]string{"CONSUL_IPTABLES_CONFIG": complete(t, `{"ExcludeOutboundPorts":["3306"],"ExcludeHosts":["x"]}`)}
	d, ok := mesh.ForSandbox(args)
	require.True(t, ok)
	assert.False(t, d.ReadsNamespace(nil))
	assert.Empty(t, d.Applied)
	pod := meshed("{", "perhaps")
	assert.Equal(t, status.CodeSelected, d.Decide(pod, nil).Reason)
	built, err := d.Redirect(pod, nil, dialecttest.Addrs())
	require.NoError(t, err)
	want := consul.DefaultRedirect()
	want.Outbound.ExcludePorts = redirect.Ports(3306)
	assert.Equal(t, want, built.Redirect)
	assert.Equal(t, []string{"CNI_ARGS CONSUL_IPTABLES_CONFIG.ExcludeHosts is not known, so it does nothing"}, built.Warnings.Texts())
	assert.Contains(t, built.Origins, redirect.Origin{
		Field: "outbound.excludePorts", Source: redirect.FromArgs, Key: "CONSUL_IPTABLES_CONFIG.ExcludeOutboundPorts", Value: "3306",
	})
	assert.Contains(t, built.Origins, redirect.Origin{Field: "ipv6", Source: redirect.FromDefault})

	// The mesh itself is as it was.
	assert.Equal(t, status.CodeExcludedNamespace, mesh.Decide(pod, nil).Reason)
}

func TestSandboxFamilies(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	tests := []struct {
		ip    string
		addrs []netip.Addr
		want  redirect.FamilyMode // of IPv6; empty: refused
	}{
		{"", nil, redirect.FamilyPass},
		{"", []netip.Addr{v4, v6}, redirect.FamilyPass},
		{"", []netip.Addr{v6, v4}, redirect.FamilyPass},
		{"", []netip.Addr{v6}, redirect.FamilyCapture},
		{"10.0.0.2", []netip.Addr{v6}, redirect.FamilyPass},
		{"::ffff:10.0.0.2", nil, redirect.FamilyPass},
		{"fd00::2", []netip.Addr{v4}, redirect.FamilyCapture},
		{"fe80::2%eth0", nil, ""},
		{"10.0.0.2/24", nil, ""},
	}
	for _, tt := range tests {
		d, ok := consul.New().ForSandbox(map[string]string{"CONSUL_IPTABLES_CONFIG": complete(t, "{}"), "IP": tt.ip})
		require.True(t, ok)
		built, err := d.Redirect(&corev1.Pod{}, nil, tt.addrs)
		if tt.want == "" {
			var e *redirect.SettingError
			require.True(t, errors.As(err, &e), "%s: %v", tt.ip, err)
			assert.Equal(t, redirect.SettingError{Source: redirect.FromArgs, Key: "IP", Value: tt.ip, Allowed: e.Allowed, Err: e.Err}, *e)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, tt.want, built.Redirect.IPv6, "%s %v", tt.ip, tt.addrs)
		assert.Equal(t, redirect.FamilyCapture, built.Redirect.IPv4)
	}
}
