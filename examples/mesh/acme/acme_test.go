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
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/status"
)

var mesh = acme.Dialects()[0]

func pod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: acme.Proxy}}},
	}
}

func rules(t *testing.T, annotations map[string]string) ruleset.Ruleset {
	t.Helper()
	plan, err := mesh.Plan(dialect.Subject{Pod: pod(annotations), Addrs: dialecttest.Addrs()}, dialect.Options{})
	require.NoError(t, err)
	return plan.Ruleset
}

// TestValid finds all that would keep the programs from working.
func TestValid(t *testing.T) {
	assert.NoError(t, acme.Identity().Validate())
	assert.NoError(t, dialect.Validate(acme.Dialects()))
}

func TestWhoIsInTheMesh(t *testing.T) {
	reason := func(p *corev1.Pod) status.Code { return mesh.Decide(p, nil).Reason }
	assert.Equal(t, status.CodeSelected, reason(pod(nil)))
	assert.Equal(t, status.CodeNoProxy, reason(&corev1.Pod{}))
	assert.Equal(t, status.CodeInjectDisabled, reason(pod(map[string]string{acme.Inject: "false"})))
	old := pod(nil)
	old.Spec.InitContainers = []corev1.Container{{Name: "acme-init"}}
	assert.Equal(t, status.CodeInitContainer, reason(old))
}

// TestAnnotations tries each annotation with a value that is taken, and one that is refused.
func TestAnnotations(t *testing.T) {
	type R = redirect.Redirect
	var keys []string
	for _, s := range acme.Settings() {
		keys = append(keys, s.Keys...)
	}
	dialecttest.Settings(t, mesh, pod(nil), acme.DefaultRedirect(), keys, []dialecttest.Setting{
		{Key: acme.SkipPorts, Value: "3306,5432", Want: func(r *R) { r.Outbound.ExcludePorts = redirect.Ports(3306, 5432) }},
		{Key: acme.SkipPorts, Value: "mysql"},
		{Key: acme.SkipClients, Value: "10.0.0.0/8", Want: func(r *R) { r.Inbound.ExcludeSources = redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8")) }},
		{Key: acme.SkipClients, Value: "10.0.0.0"},
		{Key: acme.CaptureDNS, Value: "true", Want: func(r *R) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 7053} }},
		{Key: acme.CaptureDNS, Value: "maybe"},
	})
}

// TestWhereTrafficGoes states what the mesh promises, packet by packet. It holds however the rules are written, and needs no kernel; a failure
// names the rule that is to blame.
func TestWhereTrafficGoes(t *testing.T) {
	rulesettest.New(t, rules(t, map[string]string{acme.SkipPorts: "3306,6000-6999"}), "10.244.1.5", "fd00:10:244::5").Table(`
		out tcp uid 1000 -> 10.0.0.1:443          => redirect 7001
		out tcp uid 1000 -> [2001:db8::1]:443     => redirect 7001
		out tcp uid 1000 -> 10.0.0.1:3306         => pass
		out tcp uid 1000 -> 10.0.0.1:6379         => pass
		out tcp uid 7001 -> 10.0.0.1:443          => pass
		out udp uid 1000 -> 10.0.0.1:53           => pass
		in  tcp from 192.0.2.1 -> 10.244.1.5:8080 => redirect 7002
		in  tcp -> [fd00:10:244::5]:8080          => redirect 7002
		in  tcp -> 10.244.1.5:7003                => pass
	`)
}

// TestRules keeps the rules themselves under review. To write them anew: make golden.
func TestRules(t *testing.T) {
	rulesettest.Golden(t, rules(t, map[string]string{acme.SkipPorts: "3306", acme.CaptureDNS: "true"}), "testdata/rules.golden")
}
