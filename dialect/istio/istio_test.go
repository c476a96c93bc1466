package istio_test

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/status"
)

// meshed is a pod as the injector leaves it, but for the changes.
func meshed(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", Annotations: map[string]string{istio.StatusAnnotation: "{}"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "istio-proxy", Args: []string{"proxy", "sidecar"}}, {Name: "app"},
		}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func annotated(kv ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(kv); i += 2 {
			p.Annotations[kv[i]] = kv[i+1]
		}
	}
}

func proxyEnv(kv ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(kv); i += 2 {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: kv[i], Value: kv[i+1]})
		}
	}
}

func runAs(user, group int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &group}
	}
}

func prefixes(list ...string) redirect.PrefixSet {
	var p []netip.Prefix
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return redirect.Prefixes(p...)
}

// TestAnnotations tries each annotation with each kind of value that its
// grammar tells apart.
func TestAnnotations(t *testing.T) {
	type change = func(*redirect.Redirect)
	same := func(*redirect.Redirect) {}
	inbound := func(s redirect.PortSet) change { return func(r *redirect.Redirect) { r.Inbound.Ports = s } }
	notInbound := func(s redirect.PortSet) change { return func(r *redirect.Redirect) { r.Inbound.ExcludePorts = s } }
	outbound := func(s redirect.PortSet) change { return func(r *redirect.Redirect) { r.Outbound.Ports = s } }
	notOutbound := func(s redirect.PortSet) change {
		return func(r *redirect.Redirect) { r.Outbound.ExcludePorts = s }
	}
	cidrs := func(s redirect.PrefixSet) change { return func(r *redirect.Redirect) { r.Outbound.CIDRs = s } }
	notCIDRs := func(s redirect.PrefixSet) change { return func(r *redirect.Redirect) { r.Outbound.ExcludeCIDRs = s } }
	excluded := func(names ...string) change { return func(r *redirect.Redirect) { r.ExcludeInterfaces = names } }
	virtual := func(names ...string) change { return func(r *redirect.Redirect) { r.VirtualInterfaces = names } }

	table := []dialecttest.Setting{
		{Key: istio.InterceptionMode, Value: "REDIRECT", Want: same},
		{Key: istio.InterceptionMode, Value: "TPROXY", Want: func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }},
		{Key: istio.InterceptionMode, Value: "tproxy"},
		{Key: istio.InterceptionMode, Value: "NONE"},
		{Key: istio.InterceptionMode, Value: ""},

		{Key: "status.sidecar.istio.io/port", Value: "15020", Want: same},
		{Key: "status.sidecar.istio.io/port", Value: "0", Want: same},
		{Key: "status.sidecar.istio.io/port", Value: "http"},
		{Key: "status.sidecar.istio.io/port", Value: "65536"},
		{Key: "status.sidecar.istio.io/port", Value: ""},

		{Key: "traffic.sidecar.istio.io/includeInboundPorts", Value: "*", Want: inbound(redirect.AllPorts())},
		{Key: "traffic.sidecar.istio.io/includeInboundPorts", Value: "", Want: inbound(redirect.NoPorts())},
		{Key: "traffic.sidecar.istio.io/includeInboundPorts", Value: " 9090 , 8080,8080", Want: inbound(redirect.Ports(8080, 9090))},

		{Key: istio.ExcludeInboundPorts, Value: "", Want: notInbound(redirect.Ports(15020, 15021, 15090))},
		{Key: istio.ExcludeInboundPorts, Value: "22", Want: notInbound(redirect.Ports(22, 15020, 15021, 15090))},
		{Key: istio.ExcludeInboundPorts, Value: "*", Want: notInbound(redirect.AllPorts())},

		{Key: "traffic.sidecar.istio.io/includeOutboundPorts", Value: "", Want: outbound(redirect.NoPorts())},
		{Key: "traffic.sidecar.istio.io/includeOutboundPorts", Value: "443", Want: outbound(redirect.Ports(443))},
		{Key: "traffic.sidecar.istio.io/includeOutboundPorts", Value: "*", Want: outbound(redirect.AllPorts())},

		{Key: istio.ExcludeOutboundPorts, Value: "", Want: notOutbound(redirect.NoPorts())}, // not even 15020
		{Key: istio.ExcludeOutboundPorts, Value: "3306,6379", Want: notOutbound(redirect.Ports(3306, 6379))},
		{Key: istio.ExcludeOutboundPorts, Value: "*", Want: notOutbound(redirect.AllPorts())},

		{Key: "traffic.sidecar.istio.io/includeOutboundIPRanges", Value: "*", Want: same},
		{Key: "traffic.sidecar.istio.io/includeOutboundIPRanges", Value: "", Want: cidrs(redirect.NoPrefixes())},
		{Key: "traffic.sidecar.istio.io/includeOutboundIPRanges", Value: "10.0.0.0/8,fd00::/8", Want: cidrs(prefixes("10.0.0.0/8", "fd00::/8"))},
		{Key: "traffic.sidecar.istio.io/includeOutboundIPRanges", Value: "10.0.0.0"},
		{Key: "traffic.sidecar.istio.io/includeOutboundIPRanges", Value: "10.0.0.0/8, 11.0.0.0/8"},

		{Key: "traffic.sidecar.istio.io/excludeOutboundIPRanges", Value: "", Want: notCIDRs(redirect.NoPrefixes())},
		{Key: "traffic.sidecar.istio.io/excludeOutboundIPRanges", Value: "198.51.100.0/24", Want: notCIDRs(prefixes("198.51.100.0/24"))},
		{Key: "traffic.sidecar.istio.io/excludeOutboundIPRanges", Value: "*"}, // the one list without it
		{Key: "traffic.sidecar.istio.io/excludeOutboundIPRanges", Value: "10.0.0.0/33"},
		{Key: "traffic.sidecar.istio.io/excludeOutboundIPRanges", Value: "10.0.0.0/8,"},

		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: "", Want: same},
		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: " net1 , eth0.100,net1", Want: excluded("net1", "eth0.100")},
		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: "abcdefghijklmno", Want: excluded("abcdefghijklmno")},
		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: "abcdefghijklmnop"},
		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: "1eth"},
		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: "-i"},
		{Key: "traffic.sidecar.istio.io/excludeInterfaces", Value: "eth0,"},

		{Key: "istio.io/reroute-virtual-interfaces", Value: "virt0", Want: virtual("virt0")},
		{Key: "istio.io/reroute-virtual-interfaces", Value: "virt+"},
		{Key: "traffic.sidecar.istio.io/kubevirtInterfaces", Value: "virt0,virt1", Want: virtual("virt0", "virt1")},
		{Key: "traffic.sidecar.istio.io/kubevirtInterfaces", Value: "virt 0"},
	}
	lists := []string{"traffic.sidecar.istio.io/includeInboundPorts", istio.ExcludeInboundPorts, "traffic.sidecar.istio.io/includeOutboundPorts", istio.ExcludeOutboundPorts}
	for _, key := range lists {
		for _, value := range []string{"80,", ",80", "80,,81", "80-90", "http", "+80", "-80", "65536", "80 81", "*,80", " *"} {
			table = append(table, dialecttest.Setting{Key: key, Value: value})
		}
	}
	dialecttest.Settings(t, istio.New(), meshed(), istio.DefaultRedirect(), append(lists,
		istio.InterceptionMode, "status.sidecar.istio.io/port", "traffic.sidecar.istio.io/includeOutboundIPRanges", "traffic.sidecar.istio.io/excludeOutboundIPRanges",
		"traffic.sidecar.istio.io/excludeInterfaces", "istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/kubevirtInterfaces",
	), table)
}

func build(t *testing.T, pod *corev1.Pod, addrs ...string) dialect.Reading {
	t.Helper()
	var parsed []netip.Addr
	for _, a := range addrs {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	b, err := istio.New().Redirect(pod, nil, parsed)
	require.NoError(t, err)
	return b
}

func TestProxyEnvironment(t *testing.T) {
	env := func(key, value string, want func(*redirect.Redirect)) dialecttest.Setting {
		return dialecttest.Setting{Source: redirect.FromEnv, Key: key, Value: value, Want: want}
	}
	ignored := func(key, value string) dialecttest.Setting {
		return dialecttest.Setting{Source: redirect.FromEnv, Key: key, Value: value, Ignored: true}
	}
	same := func(*redirect.Redirect) {}
	dialecttest.Settings(t, istio.New(), meshed(), istio.DefaultRedirect(), []string{"ISTIO_META_DNS_CAPTURE", "INVALID_DROP", istio.DualStack}, []dialecttest.Setting{
		env("ISTIO_META_DNS_CAPTURE", "true", func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort} }),
		env("ISTIO_META_DNS_CAPTURE", "false", same),
		env("ISTIO_META_DNS_CAPTURE", "", same),
		ignored("ISTIO_META_DNS_CAPTURE", "on"),
		env("INVALID_DROP", "1", func(r *redirect.Redirect) { r.DropInvalid = true }),
		ignored("INVALID_DROP", "yup"),
		env(istio.DualStack, "true", func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyCapture }),
		ignored(istio.DualStack, "maybe"),
	})
	b := build(t, meshed(proxyEnv("INVALID_DROP", "true", "INVALID_DROP", "false")))
	assert.False(t, b.Redirect.DropInvalid, "the last of several variables of one name counts")
	b = build(t, meshed(func(p *corev1.Pod) {
		p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}}
	}))
	assert.False(t, b.Redirect.DNS.Enabled(), "another container's variables say nothing")
}

func TestFamilies(t *testing.T) {
	dual := proxyEnv(istio.DualStack, "true")
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		addrs []string
		ipv6  redirect.FamilyMode
	}{
		{"no address known", meshed(), nil, redirect.FamilyPass},
		{"IPv4", meshed(), []string{"10.0.0.1"}, redirect.FamilyPass},
		{"IPv6", meshed(), []string{"fd00::1"}, redirect.FamilyCapture},
		{"IPv4 first", meshed(), []string{"10.0.0.1", "fd00::1"}, redirect.FamilyPass},
		{"IPv6 first", meshed(), []string{"fd00::1", "10.0.0.1"}, redirect.FamilyCapture},
		{"IPv4 first, dual stack", meshed(dual), []string{"10.0.0.1", "fd00::1"}, redirect.FamilyCapture},
		{"IPv4, dual stack", meshed(dual), []string{"10.0.0.1"}, redirect.FamilyCapture},
	} {
		r := build(t, c.pod, c.addrs...).Redirect
		assert.Equal(t, redirect.FamilyCapture, r.IPv4, "%s: IPv4 always", c.name)
		assert.Equal(t, c.ipv6, r.IPv6, c.name)
	}
}

func TestProxyIDs(t *testing.T) {
	for _, c := range []struct{ user, group, uid, gid int64 }{
		{0, 0, 1337, 1337}, {2000, 3000, 2000, 3000}, {2000, 0, 2000, 1337}, {0, 3000, 1337, 3000},
	} {
		p := build(t, meshed(runAs(c.user, c.group))).Redirect.Proxy
		assert.Equal(t, []uint32{uint32(c.uid)}, p.UIDs)
		assert.Equal(t, []uint32{uint32(c.gid)}, p.GIDs)
	}
}

// TestAllErrorsAtOnce: a pod with everything wrong is refused once, for
// everything.
func TestAllErrorsAtOnce(t *testing.T) {
	wrong := map[string]string{
		istio.InterceptionMode: "NONE", "status.sidecar.istio.io/port": "no",
		"traffic.sidecar.istio.io/includeInboundPorts": "a", istio.ExcludeInboundPorts: "b", "traffic.sidecar.istio.io/includeOutboundPorts": "c", istio.ExcludeOutboundPorts: "d",
		"traffic.sidecar.istio.io/includeOutboundIPRanges": "e", "traffic.sidecar.istio.io/excludeOutboundIPRanges": "*", "traffic.sidecar.istio.io/excludeInterfaces": "-f", "istio.io/reroute-virtual-interfaces": "-g",
	}
	var kv []string
	for k, v := range wrong {
		kv = append(kv, k, v)
	}
	_, err := istio.New().Redirect(meshed(annotated(kv...), runAs(-1, 1<<40)), nil, nil)
	require.Error(t, err)
	assert.True(t, strings.HasPrefix(err.Error(), "istio configuration of pod shop/cart: "))
	for k, v := range wrong {
		assert.ErrorContains(t, err, "annotation "+k+`="`+v+`": `)
	}
	assert.ErrorContains(t, err, `securityContext runAsUser="-1"`)
	assert.ErrorContains(t, err, `securityContext runAsGroup="1099511627776"`)
	var setting *redirect.SettingError
	assert.True(t, errors.As(err, &setting))
}

func TestOriginsAndWarnings(t *testing.T) {
	b := build(t, meshed(annotated(istio.ExcludeInboundPorts, "22", "traffic.sidecar.istio.io/kubevirtInterfaces", "virt0"), proxyEnv("ISTIO_META_DNS_CAPTURE", "true"), runAs(2000, 0)))
	got := map[string]redirect.Origin{}
	for _, o := range b.Origins {
		got[o.Field] = o
	}
	for _, want := range []redirect.Origin{
		{Field: "mode", Source: redirect.FromDefault},
		{Field: "inbound.ports", Source: redirect.FromDefault},
		{Field: "inbound.excludePorts", Source: redirect.FromAnnotation, Key: istio.ExcludeInboundPorts, Value: "22"},
		{Field: "virtualInterfaces", Source: redirect.FromAnnotation, Key: "traffic.sidecar.istio.io/kubevirtInterfaces", Value: "virt0"},
		{Field: "dns.servers", Source: redirect.FromEnv, Key: "ISTIO_META_DNS_CAPTURE", Value: "true"},
		{Field: "proxy.uids", Source: redirect.FromSecurityContext, Key: "runAsUser", Value: "2000"},
		{Field: "proxy.gids", Source: redirect.FromDefault},
	} {
		assert.Equal(t, want, got[want.Field])
	}
	require.Len(t, b.Warnings, 1)
	assert.Contains(t, b.Warnings[0].Text, "traffic.sidecar.istio.io/kubevirtInterfaces"+" is deprecated: use "+"istio.io/reroute-virtual-interfaces")

	b = build(t, meshed(annotated("traffic.sidecar.istio.io/kubevirtInterfaces", "old", "istio.io/reroute-virtual-interfaces", "new")))
	assert.Equal(t, []string{"new"}, b.Redirect.VirtualInterfaces)
	assert.Empty(t, b.Warnings)
}

// TestDecide: the order of Istio's own plugin; the general table is package
// selection's.
func TestDecide(t *testing.T) {
	d := istio.New("kube-system", "istio-system")
	label := func(v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{istio.InjectKey: v} }
	}
	for _, c := range []struct {
		pod  *corev1.Pod
		want status.Code
	}{
		{meshed(), status.CodeSelected},
		{meshed(func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:1], p.Spec.Containers[1:]
		}), status.CodeSelected},
		{meshed(func(p *corev1.Pod) { p.Namespace = "istio-system" }), status.CodeExcludedNamespace},
		{meshed(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), status.CodeHostNetwork},
		{meshed(func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}} }), status.CodeInitContainer},
		{meshed(func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "istio-validation"}} }), status.CodeSelected},
		{meshed(proxyEnv("DISABLE_ENVOY", "true")), status.CodeProxyDisabled},
		{meshed(proxyEnv("DISABLE_ENVOY", "perhaps")), status.CodeSelected},
		{meshed(func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] }), status.CodeNoProxy},
		{meshed(func(p *corev1.Pod) { p.Spec.Containers[0].Args[1] = "router" }), status.CodeProxyType},
		{meshed(func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"router"} }), status.CodeSelected},
		{meshed(label("false")), status.CodeInjectDisabled},
		{meshed(annotated(istio.InjectKey, "false")), status.CodeInjectDisabled},
		{meshed(annotated(istio.InjectKey, "false"), label("true")), status.CodeSelected},
		{meshed(func(p *corev1.Pod) { p.Annotations = nil }), status.CodeNotInjected},
	} {
		got := d.Decide(c.pod, nil)
		assert.Equal(t, c.want, got.Reason, got.Detail)
	}
}

func TestGolden(t *testing.T) {
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		addrs []string
	}{
		"ipv4":      {meshed(), []string{"10.244.1.5"}},
		"ipv6":      {meshed(), []string{"fd00:10:244::5"}},
		"tproxy":    {meshed(annotated(istio.InterceptionMode, "TPROXY")), []string{"10.244.1.5"}},
		"dns":       {meshed(proxyEnv("ISTIO_META_DNS_CAPTURE", "true")), []string{"10.244.1.5"}},
		"some-more": {meshed(annotated("traffic.sidecar.istio.io/excludeOutboundIPRanges", "198.51.100.0/24", "traffic.sidecar.istio.io/includeOutboundPorts", "443", "traffic.sidecar.istio.io/excludeInterfaces", "net1"), proxyEnv("INVALID_DROP", "true")), []string{"10.244.1.5"}},
	} {
		t.Run(name, func(t *testing.T) {
			rulesettest.Golden(t, build(t, c.pod, c.addrs...).Redirect.MustRuleset(), filepath.Join("testdata", name+".rules"))
		})
	}
}
