package systemtest

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestOneWatch: the agent's socket, the node's proxy, repair, verification and detection share one watch of the node's pods.
func TestOneWatch(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables, "--repair=label", "--detect")
	token := n.ServiceAccount(t, n.ns, "agent") // the requests of an administrator are not in the audit log
	n.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-of-" + n.ns},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: n.ns, Name: "agent"}},
	}, nil)
	require.NoError(t, os.WriteFile(n.in("sa/token"), []byte(token), 0o600))
	n.start()
	n.proxy(nodeproxytest.Faults{})
	p := n.pod("cart", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create().add()
	p.runs()
	n.becomes(p, status.StateCaptured)
	repairs := n.pod("web", small(t, "10.244.1.6"), "", "10.244.1.6").create()
	n.until("repair sees both pods", func() bool { return strings.Contains(n.get("/metrics"), `meshcni_pods_known 2`) })
	n.Remove(t, n.ns, repairs.Name)
	n.until("repair sees that one is gone", func() bool { return strings.Contains(n.get("/metrics"), `meshcni_pods_known 1`) })
	// A server that cannot begin a watch with what there is ends that, and is asked for a list and another watch.
	calls := n.server.Calls(t, "system:serviceaccount:"+n.ns+":agent")
	assert.Equal(t, 1, calls["watch pods"]-calls["list pods"], "%v", calls)
}
