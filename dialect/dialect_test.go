package dialect_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/selection"
)

// toy is a mesh that is unlike the ones we know: pods opt in by an annotation of
// their namespace, the proxy is known by its user alone, listens on ports of
// its own, and captures only what its one annotation lists.
func toy() dialect.Dialect {
	defaults := redirect.Default()
	defaults.Proxy = redirect.Proxy{UIDs: []uint32{777}, OutboundPort: 7001, InboundPort: 7002}
	defaults.Inbound.Ports = redirect.NoPorts()
	defaults.Names.ChainPrefix = "TOY_"
	schema := redirect.Schema{
		Defaults: defaults,
		Settings: []redirect.Setting{{
			Field: "inbound.ports", Source: redirect.FromAnnotation, Keys: []string{"toy/ports"}, Allowed: "ports and ranges",
			Grammar: redirect.Grammar{Ranges: true},
		}},
	}
	return dialect.Dialect{
		Name:           "toy",
		Policy:         selection.Policy{ProxyContainers: []string{"toy-proxy"}},
		Names:          defaults.Names,
		NeedsNamespace: true,
		Build: func(in dialect.Input) (dialect.Reading, error) {
			r, err := in.Read(schema)
			if in.Namespace != nil && in.Namespace.Annotations["toy/quiet"] == "yes" {
				r.Redirect.Outbound.CIDRs = redirect.NoPrefixes()
			}
			if len(in.Addrs) > 0 && in.Addrs[0].Is4() {
				r.Redirect.IPv6 = redirect.FamilyPass
			}
			return r, err
		},
	}
}

func toyPod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "toy-proxy"}}},
	}
}

var v4 = []netip.Addr{netip.MustParseAddr("10.244.1.5")}

// TestOwnDialect is the seam: a mesh of which nothing here knows brings a
// struct and a function, and gets decisions, rules and tests of them.
func TestOwnDialect(t *testing.T) {
	mesh := toy()
	pod := toyPod(map[string]string{"toy/ports": "8000-8010"})
	assert.True(t, mesh.Decide(pod, nil).Selected)

	built, err := mesh.Redirect(pod, plain, v4)
	require.NoError(t, err)
	assert.Equal(t, []redirect.Origin{{Field: "inbound.ports", Source: redirect.FromAnnotation, Key: "toy/ports", Value: "8000-8010"}}, built.Origins)
	rs := built.Redirect.MustRuleset()
	assert.Nil(t, rs.IPv6)
	assert.Contains(t, rs.IPv4.String(), ":TOY_OUTPUT")
	assert.Equal(t, mesh.Names.Owner(), rs.IPv4.Owner, "clean-up without a pod finds these rules")
	rules := rulesettest.New(t, rs, "10.244.1.5")
	rules.Table(`
		out tcp uid 1000 -> 10.0.0.1:443    => redirect 7001
		out tcp uid 777 -> 10.0.0.1:443     => pass
		in  tcp -> 10.244.1.5:8005          => redirect 7002
		in  tcp -> 10.244.1.5:9000          => pass
	`)

	quiet := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"toy/quiet": "yes"}}}
	built, err = mesh.Redirect(pod, quiet, v4)
	require.NoError(t, err)
	rulesettest.New(t, built.Redirect.MustRuleset(), "10.244.1.5").Table("out tcp uid 1000 -> 10.0.0.1:443 => pass")
}

func TestRedirectNamesTheMeshAndThePod(t *testing.T) {
	_, err := toy().Redirect(toyPod(map[string]string{"toy/ports": "x"}), plain, v4)
	require.EqualError(t, err, `toy configuration of pod shop/cart: annotation toy/ports="x": "x" is not a port from 0 to 65535 (allowed: ports and ranges)`)
	var setting *redirect.SettingError
	require.True(t, errors.As(err, &setting))
	assert.Equal(t, "toy/ports", setting.Key)
}

// TestRedirectIsValid: a dialect's mistake is an error and never rules.
func TestRedirectIsValid(t *testing.T) {
	mesh := toy()
	mesh.Build = func(dialect.Input) (dialect.Reading, error) { return dialect.Reading{}, nil }
	_, err := mesh.Redirect(toyPod(nil), plain, nil)
	var field *redirect.FieldError
	require.ErrorAs(t, err, &field)
	assert.ErrorContains(t, err, "toy configuration of pod shop/cart: dialect toy: redirect: mode: ")
}

func TestInput(t *testing.T) {
	mesh := toy()
	var got dialect.Input
	build := mesh.Build
	mesh.Build = func(in dialect.Input) (dialect.Reading, error) { got = in; return build(in) }
	pod, ns := toyPod(nil), &corev1.Namespace{}
	_, err := mesh.Redirect(pod, ns, v4)
	require.NoError(t, err)
	assert.Equal(t, dialect.Input{Pod: pod, Namespace: ns, Proxy: &pod.Spec.Containers[1], Addrs: v4}, got)

	user := int64(5)
	pod.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{}}}
	pod.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
	given := got.Values()
	assert.Equal(t, map[string]string{"A": "2", "B": ""}, given.Env, "the last counts; a value from elsewhere is not known")
	assert.Equal(t, &user, given.RunAsUser)
	assert.Nil(t, given.RunAsGroup)
	assert.Nil(t, dialect.Input{Pod: pod}.Values().RunAsUser, "a pod without proxy")
}
