package linkerd_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// meshed is an injected pod, but for the changes.
func meshed(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "linkerd-network-validator"}},
			Containers:     []corev1.Container{{Name: "cart"}, {Name: "linkerd-proxy"}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func TestSelection(t *testing.T) {
	d := linkerd.New("kube-system")
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		want   status.Code
	}{
		{"injected", func(*corev1.Pod) {}, status.CodeSelected},
		{"native sidecar", func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = append(p.Spec.InitContainers, p.Spec.Containers[1]), p.Spec.Containers[:1]
		}, status.CodeSelected},
		{"rules set from inside", func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "linkerd-init"})
		}, status.CodeInitContainer},
		{"no proxy", func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, status.CodeNoProxy},
		{"excluded namespace", func(p *corev1.Pod) { p.Namespace = "kube-system" }, status.CodeExcludedNamespace},
		{"host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, status.CodeHostNetwork},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, d.Decide(meshed(tt.change), nil).Reason, tt.name)
	}
}

func TestSettings(t *testing.T) {
	subnets := redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"))
	skipIn := func(want redirect.PortSet) func(*redirect.Redirect) {
		return func(r *redirect.Redirect) { r.Inbound.ExcludePorts = want }
	}
	skipOut := func(want redirect.PortSet) func(*redirect.Redirect) {
		return func(r *redirect.Redirect) { r.Outbound.ExcludePorts = want }
	}
	same := func(*redirect.Redirect) {}
	dialecttest.Settings(t, linkerd.New(), meshed(), linkerd.DefaultRedirect(), []string{
		linkerd.SkipInboundPorts, linkerd.SkipOutboundPorts, linkerd.SkipSubnets, linkerd.ProxyUID, linkerd.ProxyGID,
		linkerd.InboundPort, linkerd.OutboundPort,
	}, []dialecttest.Setting{
		{Key: linkerd.SkipInboundPorts, Value: "22, 7000-9000", Want: skipIn(redirect.PortRanges(
			ruleset.Port(22), ruleset.Port(4190), ruleset.Port(4191), ruleset.PortRange{First: 7000, Last: 9000}))},
		{Key: linkerd.SkipInboundPorts, Value: "22", Source: redirect.FromNamespace, Want: skipIn(redirect.Ports(22, 4190, 4191))},
		{Key: linkerd.SkipInboundPorts, Value: "", Want: same},
		{Key: linkerd.SkipInboundPorts, Value: "http"},
		{Key: linkerd.SkipInboundPorts, Value: "9000-7000"},
		{Key: linkerd.SkipInboundPorts, Value: "22,", Source: redirect.FromNamespace},
		{Key: linkerd.SkipOutboundPorts, Value: "3306,443", Want: skipOut(redirect.Ports(443, 3306))},
		{Key: linkerd.SkipOutboundPorts, Value: "1-1024", Source: redirect.FromNamespace, Want: skipOut(redirect.PortRanges(ruleset.PortRange{First: 1, Last: 1024}))},
		{Key: linkerd.SkipOutboundPorts, Value: "65536"},
		{Key: linkerd.SkipOutboundPorts, Value: "*"},
		{Key: linkerd.SkipSubnets, Value: "10.0.0.0/8, fd00::/8", Want: func(r *redirect.Redirect) { r.Inbound.ExcludeSources = subnets }},
		{Key: linkerd.SkipSubnets, Value: "10.0.0.1"},
		{Key: linkerd.SkipSubnets, Value: "10.0.0.0/33", Source: redirect.FromNamespace},
		{Key: linkerd.ProxyUID, Value: "3000", Want: func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{3000} }},
		{Key: linkerd.ProxyUID, Value: "3000", Source: redirect.FromNamespace, Want: func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{3000} }},
		{Key: linkerd.ProxyUID, Value: "linkerd"},
		{Key: linkerd.ProxyUID, Value: "0"},
		{Key: linkerd.ProxyUID, Value: "4294967295"},
		{Key: linkerd.ProxyGID, Value: "3000", Want: func(r *redirect.Redirect) { r.Proxy.GIDs = []uint32{3000} }},
		{Key: linkerd.ProxyGID, Value: "-1", Want: same},
		{Key: linkerd.ProxyGID, Value: "0", Want: same},
		{Key: linkerd.ProxyGID, Value: "-2"},
		{Key: linkerd.InboundPort, Value: "5143", Want: func(r *redirect.Redirect) { r.Proxy.InboundPort = 5143 }},
		{Key: linkerd.InboundPort, Value: "0"},
		{Key: linkerd.InboundPort, Value: "5143-5150"},
		{Key: linkerd.OutboundPort, Value: "5140", Want: func(r *redirect.Redirect) { r.Proxy.OutboundPort = 5140 }},
		{Key: linkerd.OutboundPort, Value: "no"},
	})
}

// The pod's annotation wins over its namespace's, and replaces it whole.
func TestPodBeforeNamespace(t *testing.T) {
	pod := meshed(func(p *corev1.Pod) { p.Annotations[linkerd.SkipOutboundPorts] = "443" })
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		linkerd.SkipOutboundPorts: "3306", linkerd.SkipInboundPorts: "22",
	}}}
	built, err := linkerd.New().Redirect(pod, ns, dialecttest.Addrs())
	require.NoError(t, err)
	assert.Equal(t, redirect.Ports(443), built.Redirect.Outbound.ExcludePorts)
	assert.Contains(t, built.Origins, redirect.Origin{
		Field: "outbound.excludePorts", Source: redirect.FromAnnotation, Key: linkerd.SkipOutboundPorts, Value: "443"})
	assert.Contains(t, built.Origins, redirect.Origin{
		Field: "inbound.excludePorts", Source: redirect.FromNamespace, Key: linkerd.SkipInboundPorts, Value: "22"})
}

func TestControlPlane(t *testing.T) {
	pod := meshed(func(p *corev1.Pod) {
		p.Labels["linkerd.io/control-plane-component"] = "destination"
		p.Annotations[linkerd.SkipOutboundPorts] = "8086"
	})
	built, err := linkerd.New().Redirect(pod, &corev1.Namespace{}, dialecttest.Addrs())
	require.NoError(t, err)
	assert.Equal(t, redirect.Ports(443, 6443, 8086), built.Redirect.Outbound.ExcludePorts)
}

func TestProxyContainer(t *testing.T) {
	user := int64(3000)
	env := func(name, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := &p.Spec.Containers[1]
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
	runAs := func(p *corev1.Pod) {
		p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &user}
	}
	build := func(changes ...func(*corev1.Pod)) (redirect.Redirect, []string) {
		plan, err := linkerd.New().Plan(dialect.Subject{Pod: meshed(changes...), Namespace: &corev1.Namespace{}, Addrs: dialecttest.Addrs()}, dialect.Options{})
		require.NoError(t, err)
		return plan.Redirect, plan.Warnings.Texts()
	}
	r, _ := build(runAs)
	assert.Equal(t, []uint32{3000}, r.Proxy.UIDs)
	assert.Empty(t, r.Proxy.GIDs, "Linkerd knows its proxy by the user, unless told otherwise")

	r, warnings := build(runAs, func(p *corev1.Pod) { p.Annotations[linkerd.ProxyUID] = "2102" })
	assert.Equal(t, []uint32{2102}, r.Proxy.UIDs)
	assert.Equal(t, []string{`container "linkerd-proxy" runs as user 3000, and the rules know the proxy by user 2102: its connections would be redirected to itself`}, warnings)

	r, _ = build(env("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "0.0.0.0:5143"), env("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", "127.0.0.1:5140"))
	assert.Equal(t, uint16(5143), r.Proxy.InboundPort)
	assert.Equal(t, uint16(5140), r.Proxy.OutboundPort)
	assert.Equal(t, redirect.FamilyPass, r.IPv6, "the proxy does not listen on IPv6")

	r, _ = build(env("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "[::]:4143"))
	assert.Equal(t, redirect.FamilyCapture, r.IPv6)

	r, warnings = build(env("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "somewhere"))
	assert.Equal(t, uint16(4143), r.Proxy.InboundPort)
	assert.Len(t, warnings, 1)
}

// Everything that is wrong is said at once.
func TestAllErrors(t *testing.T) {
	pod := meshed(func(p *corev1.Pod) {
		p.Annotations[linkerd.SkipOutboundPorts] = "x"
		p.Annotations[linkerd.ProxyUID] = "y"
	})
	_, err := linkerd.New().Redirect(pod, &corev1.Namespace{}, nil)
	assert.ErrorContains(t, err, `linkerd configuration of pod shop/cart: annotation config.linkerd.io/skip-outbound-ports="x"`)
	assert.ErrorContains(t, err, `annotation config.linkerd.io/proxy-uid="y"`)
}

// A pod of Linkerd's, and what becomes of one of its settings.
func ExampleNew() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart",
			Annotations: map[string]string{"config.linkerd.io/skip-outbound-ports": "3306,8000-8100"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "linkerd-proxy"}}},
	}
	d := linkerd.New("kube-system")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}} // settings may stand on it too
	fmt.Println(d.Decide(pod, namespace).Reason)
	built, err := d.Redirect(pod, namespace, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(built.Redirect.MustRuleset().IPv4)
	// Output:
	// selected
	// *nat
	// :PROXY_INIT_PREROUTING - [0:0]
	// :PROXY_INIT_OUTPUT - [0:0]
	// :PROXY_INIT_INBOUND - [0:0]
	// :PROXY_INIT_IN_REDIRECT - [0:0]
	// :PROXY_INIT_REDIRECT - [0:0]
	// -A PREROUTING -j PROXY_INIT_PREROUTING
	// -A OUTPUT -j PROXY_INIT_OUTPUT
	// -A PROXY_INIT_PREROUTING -p tcp -j PROXY_INIT_INBOUND
	// -A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 3306,8000:8100 -j RETURN
	// -A PROXY_INIT_OUTPUT -p udp -m multiport --dports 3306,8000:8100 -j RETURN
	// -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN
	// -A PROXY_INIT_OUTPUT -o lo -j RETURN
	// -A PROXY_INIT_OUTPUT -d 127.0.0.1/32 -j RETURN
	// -A PROXY_INIT_OUTPUT -j PROXY_INIT_REDIRECT
	// -A PROXY_INIT_INBOUND -p tcp -m multiport --dports 4190,4191 -j RETURN
	// -A PROXY_INIT_INBOUND -p tcp -j PROXY_INIT_IN_REDIRECT
	// -A PROXY_INIT_IN_REDIRECT -p tcp -j REDIRECT --to-ports 4143
	// -A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-ports 4140
	// COMMIT
}
