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
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
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

// TestInjectorAway: a pod that asks for the mesh and has no proxy passes, unless the Policy says otherwise.
func TestInjectorAway(t *testing.T) {
	bare := pod(map[string]string{acme.Inject: "true"})
	bare.Spec.Containers = bare.Spec.Containers[:1]
	own := mesh
	for fate, want := range map[status.State]struct {
		selected bool
		state    status.State
		code     status.Code
		sentence string
	}{
		"":                   {false, status.StateOutside, status.CodeNoProxy, "This pod is not captured, because it has no proxy"},
		status.StateRefused:  {true, status.StateRefused, status.CodeRefused, "This pod is refused, and does not start, because it has no proxy"},
		status.StateCaptured: {true, status.StateCaptured, status.CodeProxyMissing, "The plugin captures this pod though it has no proxy"},
	} {
		own.Policy.MissingProxy = fate
		require.NoError(t, own.Validate())
		plan, err := own.Plan(dialect.Subject{Pod: bare}, dialect.Options{})
		assert.Equal(t, want.selected, plan.Decision.Selected)
		assert.Equal(t, fate == status.StateRefused, err != nil, "%v", err)
		assert.Equal(t, fate == status.StateCaptured, plan.Ruleset.IPv4 != nil)
		x, err := explain.Pod(dialect.SetOf(own), explain.Input{Subject: dialect.Subject{Pod: bare}, Identity: acme.Identity()})
		require.NoError(t, err)
		assert.Equal(t, want.state, x.Verdict.State)
		assert.Equal(t, want.code, x.Verdict.Code)
		assert.Contains(t, x.Verdict.Sentence, want.sentence)
		assert.NotEmpty(t, x.Verdict.Do)
		if fate != "" {
			plan, err = own.Plan(dialect.Subject{Pod: &corev1.Pod{}}, dialect.Options{})
			assert.NoError(t, err)
			assert.Equal(t, status.CodeNoProxy, plan.Decision.Reason, "nothing asks for it")
		}
	}
}

// TestProxyUser: the schema reads the user where it stands, in the proxy container; a pod's own, or root, is not the proxy's, which is said.
func TestProxyUser(t *testing.T) {
	user := func(id int64) *corev1.Pod {
		p := pod(nil)
		p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &id}
		return p
	}
	warnings := func(d dialect.Dialect, p *corev1.Pod) (codes []warning.Code) {
		plan, err := d.Plan(dialect.Subject{Pod: p}, dialect.Options{})
		require.NoError(t, err)
		for _, w := range plan.Warnings {
			codes = append(codes, w.Code)
		}
		return codes
	}
	assert.Empty(t, warnings(mesh, user(8008)), "it is the user that the rules know")
	assert.Equal(t, []warning.Code{warning.ProxyUser}, warnings(mesh, user(0)))
	fixed := mesh
	fixed.Build = dialect.FromSchema(redirect.Schema{Defaults: acme.DefaultRedirect()})
	assert.Empty(t, warnings(fixed, user(7001)))
	assert.Empty(t, warnings(fixed, pod(nil)), "what its image says is not known")
	assert.Equal(t, []warning.Code{warning.ProxyUser}, warnings(fixed, user(8008)))
	p, id := pod(nil), int64(8008)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &id}
	assert.Equal(t, []warning.Code{warning.ProxyUser}, warnings(mesh, p), "the pod's own counts where the container has none")
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
