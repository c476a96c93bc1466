package runtime

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// testUserNamespace: a pod whose users are not the host's is captured as any other,
// and what runs as the proxy's user is told by the pod's own numbers. A runtime that
// has no user namespaces (the distribution's) gives it the host's users, and it is
// captured too.
func testUserNamespace(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	n.runAgent(t)
	ns := n.namespace(t)
	s := n.run(t, meshed(ns, "own-users", excluding, ownUsers))
	requireCaptured(t, s)
	requireFates(t, s, "istio-proxy", map[string]string{"tcp:" + hostAt(elsewhere4, 80): "elsewhere:80"})
	requireFates(t, s, "app", map[string]string{"tcp:" + hostAt(elsewhere4, excludedOut): "elsewhere:3306"})
	users, err := n.UserNamespaces(t.Context())
	require.NoError(t, err)
	if k.users {
		require.True(t, users)
	}
	status, err := s.Exec(t.Context(), "app", "/podtool", "cat", "/proc/self/uid_map")
	require.NoError(t, err)
	assert.Equal(t, users, strings.Contains(status, "1048576"), "a user namespace of its own: %s", status)
}

func ownUsers(pod *corev1.Pod) {
	host := false
	pod.Spec.HostUsers = &host
}

// testUserNamespaceByIptables: the kernel lets iptables match no user there, so a
// node that insists on iptables starts no such pod, and says why. Where the runtime
// gives it the host's users after all, it starts.
func testUserNamespaceByIptables(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	n.runAgent(t, "--backend=iptables-nft")
	ns := n.namespace(t)
	users, err := n.UserNamespaces(t.Context())
	require.NoError(t, err)
	if users {
		_, err := n.RunPod(t.Context(), n.create(t, meshed(ns, "own-users", ownUsers)), nil)
		require.ErrorContains(t, err, ns+"/own-users")
	} else {
		requireCaptured(t, n.run(t, meshed(ns, "own-users", ownUsers)))
	}
	requireCaptured(t, n.run(t, meshed(ns, "host-users")))
}
