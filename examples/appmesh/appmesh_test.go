package appmesh_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/examples/appmesh"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/status"
)

const prefix = "appmesh.k8s.aws/"

func pod(annotations map[string]string, env ...corev1.EnvVar) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "envoy", Env: env}}},
	}
}

func TestWhichPods(t *testing.T) {
	decide := func(p *corev1.Pod) status.Code { return appmesh.New().Decide(p, nil).Reason }
	assert.Equal(t, status.CodeSelected, decide(pod(map[string]string{prefix + "sidecarInjectorWebhook": "enabled"})))
	assert.Equal(t, status.CodeInjectDisabled, decide(pod(map[string]string{prefix + "sidecarInjectorWebhook": "disabled"})))
	assert.Equal(t, appmesh.VirtualGateway, decide(pod(nil, corev1.EnvVar{
		Name: "APPMESH_RESOURCE_ARN", Value: "arn:aws:appmesh:us-west-2:1:mesh/m/virtualGateway/in",
	})))
	withInit := pod(nil)
	withInit.Spec.InitContainers = []corev1.Container{{Name: "proxyinit"}}
	assert.Equal(t, status.CodeInitContainer, decide(withInit))
}

// Each annotation, with a good and a bad value.
func TestAnnotations(t *testing.T) {
	type R = redirect.Redirect
	var keys []string
	var table []dialecttest.Setting
	for _, s := range []struct {
		key, good, bad string
		want           func(*R)
	}{
		{"ports", "8080,9090", "http", func(r *R) { r.Inbound.Ports = redirect.Ports(8080, 9090) }},
		{"egressIgnoredPorts", "22,3306", "1-2", func(r *R) { r.Outbound.ExcludePorts = redirect.Ports(22, 3306) }},
		{"egressIgnoredIPs", "169.254.169.254, 10.0.0.0/8", "metadata", func(r *R) {
			r.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("169.254.169.254/32"), netip.MustParsePrefix("10.0.0.0/8"))
		}},
		{"proxyIngressPort", "25000", "0", func(r *R) { r.Proxy.InboundPort = 25000 }},
		{"proxyEgressPort", "25001", "0", func(r *R) { r.Proxy.OutboundPort = 25001 }},
		{"ignoredUID", "2000", "0", func(r *R) { r.Proxy.UIDs = []uint32{2000} }},
		{"ignoredGID", "2000", "staff", func(r *R) { r.Proxy.GIDs = []uint32{2000} }},
	} {
		keys = append(keys, prefix+s.key)
		table = append(table, dialecttest.Setting{Key: prefix + s.key, Value: s.good, Want: s.want}, dialecttest.Setting{Key: prefix + s.key, Value: s.bad})
	}
	dialecttest.Settings(t, appmesh.New(), pod(nil), appmesh.Defaults(), keys, table)
}

// Where packets must end, without root or kernel.
func TestPackets(t *testing.T) {
	subject := dialect.Subject{Pod: pod(map[string]string{prefix + "ports": "8080", prefix + "egressIgnoredIPs": "169.254.169.254"}), Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}}
	plan, err := appmesh.New().Plan(subject, dialect.Options{})
	require.NoError(t, err)
	rules := rulesettest.New(t, plan.Ruleset, "10.244.1.5")
	rules.Table(`
		out tcp uid 1000 -> 10.96.0.1:80          => redirect 15001
		out tcp uid 1000 -> 10.96.0.1:22          => pass
		out tcp uid 1000 -> 169.254.169.254:80    => pass
		out tcp uid 1337 -> 10.96.0.1:80          => pass
		in  tcp from 192.0.2.1 -> 10.244.1.5:8080 => redirect 15000
		in  tcp from 192.0.2.1 -> 10.244.1.5:9090 => pass
	`)
}
