package dialect_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// TestSandboxedRuntimes: a pod whose RuntimeClass tells of a kernel or network stack of its own is refused, and with the option has a
// bypass; classes that share the node's kernel are none, whatever is near their names.
func TestSandboxedRuntimes(t *testing.T) {
	mesh := families(redirect.FamilyCapture, redirect.FamilyCapture)
	for class, is := range map[string]bool{
		"kata": true, "kata-qemu": true, "kata-clh": true, "kata-cc-isolation": true, "prod.kata-fc": true, "gvisor": true, "runsc": true, "kata-nvidia-gpu": true, "my-gvisor": true,
		"": false, "nvidia": false, "crun": false, "youki": false, "runc": false, "wasmtime": false, "katana": false, "gvisory": false, "sysbox-runc": false,
	} {
		pod := toyPod(nil)
		pod.Spec.RuntimeClassName = &class
		subject := dialect.Subject{Pod: pod}
		plan, err := mesh.Plan(subject, dialect.Options{})
		assert.Equal(t, is, err != nil, class)
		assert.True(t, plan.Decision.Selected)
		allowed, err := mesh.Plan(subject, dialect.Options{AllowSandboxed: true})
		require.NoError(t, err, class)
		if !is {
			assert.Empty(t, allowed.BypassCodes(), class)
			continue
		}
		assert.Equal(t, []dialect.BypassCode{dialect.BypassSandboxed}, plan.BypassCodes(), class)
		assert.Equal(t, []dialect.Bypass{{Code: dialect.BypassSandboxed, RuntimeClass: class}}, allowed.Bypasses)
		assert.NotNil(t, allowed.Ruleset.IPv4, "the rules are set all the same")
		_, code := allowed.State()
		assert.Equal(t, status.CodePartly, code)
	}

	own := "secure"
	pod := toyPod(nil)
	pod.Spec.RuntimeClassName = &own
	var refused *dialect.BypassError
	_, err := mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{SandboxedClasses: []string{"secure"}})
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, own, refused.RuntimeClass)
	_, err = mesh.Plan(dialect.Subject{Pod: podkeep.Trim(pod)}, dialect.Options{SandboxedClasses: []string{"secure"}})
	require.ErrorAs(t, err, &refused, "an agent keeps the class")
	kata := "kata"
	pod.Spec.RuntimeClassName = &kata
	_, err = mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{SandboxedClasses: []string{"secure"}})
	require.NoError(t, err, "the list replaces the default one")
}

// TestSandboxedAndWrong: wrong settings do not hide that the runtime class is refused too.
func TestSandboxedAndWrong(t *testing.T) {
	kata := "kata"
	pod := &corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: &kata, Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}}}
	pod.Annotations = map[string]string{"sidecar.istio.io/status": "{}", istio.ExcludeInboundPorts: "80a", istio.ExcludeOutboundPorts: "x"}
	plan, err := istio.New().Plan(dialect.Subject{Pod: pod}, dialect.Options{})
	require.ErrorAs(t, err, new(*dialect.BypassError))
	require.ErrorAs(t, err, new(*redirect.SettingError))
	for _, part := range []string{istio.ExcludeInboundPorts, istio.ExcludeOutboundPorts, kata} {
		require.ErrorContains(t, err, part)
	}
	assert.Empty(t, plan.Redirect)
	assert.Equal(t, []dialect.BypassCode{dialect.BypassSandboxed}, plan.BypassCodes())
	_, err = istio.New().Plan(dialect.Subject{Pod: pod}, dialect.Options{AllowSandboxed: true})
	require.ErrorAs(t, err, new(*redirect.SettingError))
	assert.False(t, errors.As(err, new(*dialect.BypassError)))
}

// TestEverythingWrongAtOnce: whatever refuses a pod is in one error, in each mesh: settings, runtime class, and containers that pass for
// the proxy, whose user is known unless that is what is wrong.
func TestEverythingWrongAtOnce(t *testing.T) {
	pod := func(proxy string, user int64, annotations map[string]string) *corev1.Pod {
		kata := "kata"
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: annotations}, Spec: corev1.PodSpec{
			RuntimeClassName: &kata,
			Containers:       []corev1.Container{{Name: proxy}, {Name: "app", SecurityContext: &corev1.SecurityContext{RunAsUser: &user}}},
		}}
	}
	injected := func(config string) map[string]string {
		return map[string]string{
			consul.InjectStatus: "injected", consul.TransparentProxyStatus: "waiting", consul.DualStack: "false", consul.RedirectTrafficConfig: config,
		}
	}
	for name, tt := range map[string]struct {
		mesh dialect.Dialect
		pod  *corev1.Pod
		user bool // the container is named
	}{
		"istio":               {istio.New(), pod("istio-proxy", 1337, map[string]string{istio.StatusAnnotation: "{}", istio.ExcludeInboundPorts: "80a"}), true},
		"istio, another user": {istio.New(), pod("istio-proxy", 1338, map[string]string{istio.StatusAnnotation: "{}", istio.ExcludeInboundPorts: "80a"}), false},
		"linkerd":             {linkerd.New(), pod("linkerd-proxy", 3000, map[string]string{linkerd.ProxyUID: "3000", linkerd.SkipInboundPorts: "80a"}), true},
		"linkerd, the user's": {linkerd.New(), pod("linkerd-proxy", 2102, map[string]string{linkerd.ProxyUID: "x"}), false},
		"kuma":                {kuma.New(), pod("kuma-sidecar", 4000, map[string]string{kuma.SidecarInjected: "true", kuma.Config: "kumaDPUser: \"4000\"\nredirect: {inbound: {port: 80a}}"}), true},
		"kuma, the user's":    {kuma.New(), pod("kuma-sidecar", 5678, map[string]string{kuma.SidecarInjected: "true", kuma.Config: "kumaDPUser: x"}), false},
		"kuma, no YAML":       {kuma.New(), pod("kuma-sidecar", 5678, map[string]string{kuma.SidecarInjected: "true", kuma.Config: "{"}), false},
		"consul":              {consul.New(), pod("consul-dataplane", 5995, injected(`{"ProxyUserID":"5995","ProxyInboundPort":0}`)), true},
		"consul, the user's":  {consul.New(), pod("consul-dataplane", 5995, injected(`{"ProxyInboundPort":20000}`)), false},
		"consul, no JSON":     {consul.New(), pod("consul-dataplane", 5995, injected(`{`)), false},
	} {
		plan, err := tt.mesh.Plan(dialect.Subject{Pod: tt.pod, Namespace: &corev1.Namespace{}}, dialect.Options{RefuseProxyUID: true})
		require.ErrorAs(t, err, new(*redirect.SettingError), name)
		require.ErrorContains(t, err, `runtime class, "kata"`, name)
		assert.Equal(t, tt.user, strings.Contains(err.Error(), `container "app" bypasses the mesh`), "%s: %v", name, err)
		assert.Empty(t, plan.Redirect, name)
		require.Error(t, plan.Ruleset.Validate(), name)
	}
}

// TestRetiredByMesh: what Linkerd, Consul and Istio's injector read once is warned of with what they read today.
func TestRetiredByMesh(t *testing.T) {
	meshes := dialect.SetOf(istio.New(), linkerd.New(), consul.New())
	for mesh, keys := range map[string]map[string]string{
		"istio": {"alpha.istio.io/sidecar": "sidecar.istio.io/inject"},
		"linkerd": {
			"proxy.linkerd.io/ignore-inbound-ports": linkerd.SkipInboundPorts, "proxy.linkerd.io/ignore-outbound-ports": linkerd.SkipOutboundPorts,
			"proxy.linkerd.io/inbound-port": linkerd.InboundPort, "proxy.linkerd.io/outbound-port": linkerd.OutboundPort, "proxy.linkerd.io/uid": linkerd.ProxyUID,
		},
		"consul": {"consul.hashicorp.com/cni-proxy-config": consul.RedirectTrafficConfig},
	} {
		for old, now := range keys {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				old: "ignore", istio.StatusAnnotation: "{}", consul.InjectStatus: "injected", consul.TransparentProxyStatus: "waiting", consul.DualStack: "false",
				consul.RedirectTrafficConfig: `{"ProxyUserID":"5995","ProxyInboundPort":20000}`,
			}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "istio-proxy"}, {Name: "linkerd-proxy"}}}}
			plan, err := meshes.Lookup(mesh).Plan(dialect.Subject{Pod: pod, Namespace: &corev1.Namespace{}}, dialect.Options{})
			require.NoError(t, err, old)
			i := slices.IndexFunc(plan.Warnings, func(w warning.Warning) bool { return w.Key == old })
			require.GreaterOrEqual(t, i, 0, "%s: %v", old, plan.Warnings.Texts())
			assert.Equal(t, warning.NoEffect, plan.Warnings[i].Code)
			assert.Contains(t, plan.Warnings[i].Text, now)
		}
	}
}
