package migration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

// TestConsulWithPlugin: the pod of a Consul injector without plugin is judged by what its container was told.
func TestConsulWithPlugin(t *testing.T) {
	t.Parallel()
	yes := true
	p := &corev1.Pod{}
	p.Annotations = map[string]string{consul.InjectStatus: "injected"}
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}}
	p.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "consul-dataplane"}}
	p.Spec.InitContainers = []corev1.Container{{
		Name: "consul-connect-inject-init", SecurityContext: &corev1.SecurityContext{Privileged: &yes},
		Env: []corev1.EnvVar{{Name: "CONSUL_REDIRECT_TRAFFIC_CONFIG", Value: `{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ExcludeInboundPorts": ["9090"]}`}},
	}}
	d := consul.New()
	assert.Equal(t, status.CodeInitContainer, d.Policy.Decide(p, nil).Reason)
	without := migration.WithoutInit(p, dialect.SetOf(d))
	assert.False(t, d.Policy.Decide(without, nil).Selected, "it has no annotations of a plugin's pod")
	j := migration.Judge{Meshes: dialect.SetOf(d), Facts: facts.All()}
	x, err := j.Explain(p, nil)
	require.NoError(t, err)
	require.True(t, x.Decision.Selected)
	assert.Equal(t, redirect.Ports(9090), x.Plan.Redirect.Inbound.ExcludePorts)
	assert.Len(t, p.Annotations, 1, "the pod itself is as it was")
}
