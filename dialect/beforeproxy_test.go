package dialect_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

// TestInitContainersBeforeTheProxy are those that the rules leave without network: not those that a native sidecar starts before, the
// mesh's own, or who runs as the proxy's user, or as one whose connections are excluded.
func TestInitContainersBeforeTheProxy(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	mesh := families(redirect.FamilyCapture, redirect.FamilyCapture)
	mesh.Policy.ProxyContainers, mesh.Check.Container = []string{"toy-proxy"}, "toy-check"
	excluding := mesh
	excluding.Build = func(dialect.Input) (dialect.Reading, error) {
		r := redirect.Default()
		r.Outbound.Exclude = []redirect.Exclusion{{Protocol: redirect.TCP, Ports: redirect.Ports(5432), CIDRs: redirect.AllPrefixes(), UIDs: []redirect.IDRange{{First: 1000, Last: 2000}}}}
		return dialect.Reading{Redirect: r}, nil
	}
	onNode := mesh
	onNode.NodeProxy = &dialect.NodeProxy{}
	inboundOnly := mesh
	inboundOnly.Build = func(dialect.Input) (dialect.Reading, error) {
		r := redirect.Default()
		r.Outbound.CIDRs = redirect.NoPrefixes()
		return dialect.Reading{Redirect: r}, nil
	}
	as := func(name string, uid int64) corev1.Container {
		return corev1.Container{Name: name, SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}}
	}
	first, check, asProxy, other := corev1.Container{Name: "first"}, corev1.Container{Name: "toy-check"}, as("as-proxy", 1337), as("other", 1234)
	native := corev1.Container{Name: "toy-proxy", RestartPolicy: &always}
	for name, tt := range map[string]struct {
		mesh dialect.Dialect
		init []corev1.Container
		want []string
	}{
		"none":                       {mesh, nil, nil},
		"the proxy is no init":       {mesh, []corev1.Container{check, first, asProxy, other}, []string{"first", "other"}},
		"native sidecar":             {mesh, []corev1.Container{first, native, other}, []string{"first"}},
		"native sidecar, first":      {mesh, []corev1.Container{check, native, first, other}, nil},
		"user is excluded":           {excluding, []corev1.Container{first, other}, []string{"first"}},
		"the node's proxy is there":  {onNode, []corev1.Container{first}, nil},
		"nothing outbound is caught": {inboundOnly, []corev1.Container{first}, nil},
	} {
		pod := toyPod(nil)
		pod.Spec.InitContainers = tt.init
		plan, err := tt.mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{})
		require.NoError(t, err, name)
		assert.Equal(t, tt.want, plan.BeforeProxy, name)
	}
}

// TestRetiredAnnotations: what a mesh does not read any more is warned of, with what it reads today.
func TestRetiredAnnotations(t *testing.T) {
	mesh := families(redirect.FamilyCapture, redirect.FamilyCapture)
	mesh.Retired = []dialect.Retired{{Key: "toy/old", Now: "annotation toy/new"}, {Key: "toy/mode", Value: "off", Now: "label toy/mode"}}
	for _, tt := range []struct {
		annotations map[string]string
		keys        []string
	}{
		{map[string]string{"toy/new": "1", "toy/mode": "on"}, nil},
		{map[string]string{"toy/old": "", "toy/mode": "off"}, []string{"toy/old", "toy/mode"}},
	} {
		plan, err := mesh.Plan(dialect.Subject{Pod: toyPod(tt.annotations)}, dialect.Options{})
		require.NoError(t, err)
		var keys []string
		for _, w := range plan.Warnings {
			assert.Equal(t, warning.NoEffect, w.Code)
			keys = append(keys, w.Key)
		}
		assert.Equal(t, tt.keys, keys)
	}
}
