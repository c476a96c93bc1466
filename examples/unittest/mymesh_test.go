package mymesh_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mymesh "github.com/meshcni/meshcni/examples/unittest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/status"
)

func pod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "mymesh-proxy"}}},
	}
}

// TestWhereTrafficGoes states what the mesh promises, packet by packet. It holds however the rules are written; a failure names
// the rule that is to blame.
func TestWhereTrafficGoes(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
	built, err := mymesh.New().Redirect(pod(map[string]string{mymesh.SkipPorts: "3306,6000-6999"}), nil, addrs)
	require.NoError(t, err)

	rules := rulesettest.New(t, built.Redirect.MustRuleset(), "10.244.1.5", "fd00:10:244::5")
	rules.Table(`
		out tcp uid 1000 -> 10.0.0.1:443      => redirect 4001
		out tcp uid 1000 -> [2001:db8::1]:443 => redirect 4001
		out tcp uid 1000 -> 10.0.0.1:3306     => pass
		out tcp uid 1000 -> 10.0.0.1:6379     => pass
		out tcp uid 4242 -> 10.0.0.1:443      => pass
		out udp uid 1000 -> 10.0.0.1:53       => pass
		in  tcp -> 10.244.1.5:8080            => redirect 4002
		in  tcp -> [fd00:10:244::5]:8080      => redirect 4002
		in  tcp -> 10.244.1.5:4003            => pass
	`)
}

func TestWhoIsInTheMesh(t *testing.T) {
	mesh := mymesh.New()
	assert.Equal(t, status.CodeSelected, mesh.Decide(pod(nil), nil).Reason)
	assert.Equal(t, status.CodeInjectDisabled, mesh.Decide(pod(map[string]string{"mymesh.example/inject": "false"}), nil).Reason)
	assert.Equal(t, status.CodeNoProxy, mesh.Decide(&corev1.Pod{}, nil).Reason)
}

func TestBadAnnotationsAreRefused(t *testing.T) {
	_, err := mymesh.New().Redirect(pod(map[string]string{mymesh.SkipPorts: "mysql"}), nil, nil)
	var setting *redirect.SettingError
	require.ErrorAs(t, err, &setting)
	assert.Equal(t, mymesh.SkipPorts, setting.Key)
}
