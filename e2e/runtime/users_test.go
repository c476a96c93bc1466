package runtime

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestUserNamespace: a pod whose users are not the host's is captured as any other,
// and what runs as the proxy's user is told by the pod's own numbers.
func TestUserNamespace(t *testing.T) {
	n := newNode(t, ptp(false))
	if !n.UserNamespaces(t.Context()) {
		t.Logf("containerd %s has none; MESHCNI_E2E_RUNTIME=newest has", n.Runtime.Version)
		return
	}
	n.runAgent(t)
	ns := n.namespace(t)
	s := n.run(t, meshed(ns, "own-users", excluding, ownUsers))
	requireCaptured(t, s)
	requireFates(t, s, "istio-proxy", map[string]string{"tcp:" + hostAt(elsewhere4, 80): "elsewhere:80"})
	requireFates(t, s, "app", map[string]string{"tcp:" + hostAt(elsewhere4, excludedOut): "elsewhere:3306"})
	status, err := s.Exec(t.Context(), "app", "/podtool", "cat", "/proc/self/uid_map")
	require.NoError(t, err)
	assert.Contains(t, status, "1048576", "a user namespace of its own")
}

func ownUsers(pod *corev1.Pod) {
	host := false
	pod.Spec.HostUsers = &host
}

// TestUserNamespaceByIptables: the kernel lets iptables match no user there, so a
// node that insists on iptables starts no such pod, and says why.
func TestUserNamespaceByIptables(t *testing.T) {
	n := newNode(t, ptp(false))
	if !n.UserNamespaces(t.Context()) {
		t.Logf("containerd %s has none; MESHCNI_E2E_RUNTIME=newest has", n.Runtime.Version)
		return
	}
	n.runAgent(t, "--backend=iptables-nft")
	ns := n.namespace(t)
	_, err := n.RunPod(t.Context(), n.create(t, meshed(ns, "own-users", ownUsers)), nil)
	require.ErrorContains(t, err, ns+"/own-users")
	requireCaptured(t, n.run(t, meshed(ns, "host-users")))
}
