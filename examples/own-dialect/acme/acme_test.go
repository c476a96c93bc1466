package acme_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/status"
)

func pod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "acme-proxy"}}},
	}
}

func TestWhichPods(t *testing.T) {
	d := acme.New("kube-system")
	assert.True(t, d.Decide(pod(nil), nil).Selected)
	assert.Equal(t, status.CodeInjectDisabled, d.Decide(pod(map[string]string{"acme.example/inject": "false"}), nil).Reason)
}

// Each annotation, with a value that is taken and one that is refused.
func TestAnnotations(t *testing.T) {
	dialecttest.Settings(t, acme.New(), pod(nil), acme.Defaults(), []string{acme.SkipPorts, acme.SkipClients, acme.CaptureDNS}, []dialecttest.Setting{
		{Key: acme.SkipPorts, Value: "3306", Want: func(r *redirect.Redirect) { r.Outbound.ExcludePorts = redirect.Ports(3306) }},
		{Key: acme.SkipPorts, Value: "3306", Source: redirect.FromNamespace, Want: func(r *redirect.Redirect) { r.Outbound.ExcludePorts = redirect.Ports(3306) }},
		{Key: acme.SkipPorts, Value: "mysql"},
		{Key: acme.SkipClients, Value: "10.0.0.0/8", Want: func(r *redirect.Redirect) {
			r.Inbound.ExcludeSources = redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8"))
		}},
		{Key: acme.SkipClients, Value: "10.0.0.0"},
		{Key: acme.CaptureDNS, Value: "true", Want: func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 7053} }},
		{Key: acme.CaptureDNS, Value: "maybe"},
	})
}

// Where packets must end up, without root or kernel.
func TestPackets(t *testing.T) {
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}} // settings are inherited from it, and without it a pod is refused
	subject := dialect.Subject{Pod: pod(map[string]string{acme.SkipPorts: "3306"}), Namespace: shop, Addrs: dialecttest.Addrs()}
	plan, err := acme.New().Plan(subject, dialect.Options{})
	require.NoError(t, err)
	rules := rulesettest.New(t, plan.Ruleset, "10.244.1.5")
	rules.Table(`
		out tcp uid 1000 -> 10.96.0.1:80          => redirect 7001
		out tcp uid 1000 -> 10.96.0.1:3306        => pass
		out tcp uid 7001 -> 10.96.0.1:80          => pass
		in  tcp from 192.0.2.1 -> 10.244.1.5:8080 => redirect 7002
		in  tcp from 192.0.2.1 -> 10.244.1.5:7003 => pass
	`)
}
