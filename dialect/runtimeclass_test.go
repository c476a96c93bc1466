package dialect_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
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
	_, err = mesh.Plan(dialect.Subject{Pod: dialect.Trim(pod)}, dialect.Options{SandboxedClasses: []string{"secure"}})
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
