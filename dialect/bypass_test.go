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
)

func TestBypasses(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	always := corev1.ContainerRestartPolicyAlways
	app := func(user, group *int64) []corev1.Container {
		return []corev1.Container{
			{Name: "proxy", SecurityContext: &corev1.SecurityContext{RunAsUser: id(1337), RunAsGroup: id(1337)}},
			{Name: "app", SecurityContext: &corev1.SecurityContext{RunAsUser: user, RunAsGroup: group}},
		}
	}
	pods := &corev1.PodSecurityContext{RunAsUser: id(1337)}
	tests := []struct {
		name string
		spec corev1.PodSpec
		want []dialect.Bypass
	}{
		{"another user", corev1.PodSpec{Containers: app(id(1000), id(1000))}, nil},
		{"no word of it", corev1.PodSpec{Containers: app(nil, nil)}, nil},
		{"no securityContext", corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}, nil},
		{"the proxy's user", corev1.PodSpec{Containers: app(id(1337), nil)}, []dialect.Bypass{{Container: "app", Field: "runAsUser", ID: 1337}}},
		{"the proxy's group", corev1.PodSpec{Containers: app(nil, id(1337))}, []dialect.Bypass{{Container: "app", Field: "runAsGroup", ID: 1337}}},
		{"the pod's", corev1.PodSpec{Containers: app(nil, nil), SecurityContext: pods},
			[]dialect.Bypass{{Container: "app", Field: "runAsUser", ID: 1337, Inherited: true}}},
		{"its own hides the pod's", corev1.PodSpec{Containers: app(id(1000), nil), SecurityContext: pods}, nil},
		{"an init container", corev1.PodSpec{InitContainers: app(id(1337), nil)[1:]}, nil},
		{"a sidecar of its own", corev1.PodSpec{InitContainers: []corev1.Container{
			{Name: "logs", RestartPolicy: &always, SecurityContext: &corev1.SecurityContext{RunAsUser: id(1337)}},
		}}, []dialect.Bypass{{Container: "logs", Field: "runAsUser", ID: 1337}}},
	}
	for _, tt := range tests {
		got := dialect.Bypasses(&corev1.Pod{Spec: tt.spec}, []string{"proxy"}, redirect.Default().Proxy)
		assert.Equal(t, tt.want, got, tt.name)
	}
}

// A bypass is a warning, and an error for who wants one.
func TestBypassIsReported(t *testing.T) {
	user := int64(2000)
	as := &corev1.SecurityContext{RunAsUser: &user}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "istio-proxy", SecurityContext: as}, {Name: "app", SecurityContext: as},
	}}}
	built, err := istio.New().Redirect(pod, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{`container "app" bypasses the mesh: it runs as the proxy's user, 2000, whose outbound traffic is not redirected`}, built.Warnings)
	err = built.RefuseBypasses()
	var bypass *dialect.BypassError
	require.True(t, errors.As(err, &bypass))
	assert.Equal(t, dialect.Bypass{Container: "app", Field: "runAsUser", ID: 2000}, bypass.Bypass)
	assert.ErrorContains(t, err, "give the application another, or the proxy a user of its own")
	assert.NoError(t, dialect.Built{}.RefuseBypasses())
}
