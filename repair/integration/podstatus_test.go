package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

// statusAccount is an account with the rights that the chart gives the plugin with writeStatus, and what the plugin
// reads and writes pods with.
func statusAccount(t testing.TB, s *kubetest.Server, a *admin) (user string, client plugin.Pods) {
	t.Helper()
	user, token := account(t, a)
	name := user[strings.LastIndex(user, ":")+1:]
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: agentNamespace, Name: name}},
	}
	a.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", role, nil)
	a.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding, nil)
	config, err := s.Config(token)
	require.NoError(t, err)
	kubeconfig := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: token}}, Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}
	path := t.TempDir() + "/kubeconfig"
	require.NoError(t, clientcmd.WriteToFile(kubeconfig, path))
	client, err = kubepod.Open(path)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return user, client
}

// TestWhatPodsStatusAllows asks the real server what the right that the plugin has with write_status is good for; the
// page docs/security.md says the same.
func TestWhatPodsStatusAllows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user, client := statusAccount(t, w.s, w.admin)
	before := w.make(t, "crash-loop", "a")
	patch := func(text string) error { return client.PatchPodStatus(t.Context(), w.ns, "a", []byte(text)) }
	pod := func() *corev1.Pod { return w.Pod(t, w.ns, "a") }

	require.NoError(t, patch(`{"metadata":{"uid":"`+string(before.UID)+`","annotations":{"consul.hashicorp.com/transparent-proxy-status":"complete"}}}`))
	assert.Equal(t, "complete", pod().Annotations["consul.hashicorp.com/transparent-proxy-status"], "what write_status is for")
	assert.Equal(t, len(before.Annotations)+1, len(pod().Annotations), "the others stay")
	assert.Error(t, patch(`{"metadata":{"uid":"another","annotations":{"a":"b"}}}`), "another pod of the name")
	assert.NotContains(t, pod().Annotations, "a")

	// What the page says that it can be abused for.
	require.NoError(t, patch(`{"metadata":{"labels":{"app":"another"},"finalizers":["example.com/stay"]},
		"status":{"phase":"Failed","podIP":"192.0.2.1","podIPs":[{"ip":"192.0.2.1"}],"conditions":[{"type":"Ready","status":"True"}]}}`))
	got := pod()
	assert.Equal(t, "another", got.Labels["app"])
	assert.Equal(t, []string{"example.com/stay"}, got.Finalizers)
	assert.Equal(t, corev1.PodFailed, got.Status.Phase)
	assert.Equal(t, "192.0.2.1", got.Status.PodIP)

	// And what it cannot be: a change of the spec or of the owner is not taken, whatever the answer.
	for _, text := range []string{
		`{"spec":{"containers":[{"name":"app","image":"evil.example/x"}]}}`,
		`{"spec":{"activeDeadlineSeconds":1}}`,
		`{"spec":{"tolerations":[{"operator":"Exists"}]}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x","controller":true}]}}`,
		`{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z"}}`,
	} {
		_ = patch(text)
	}
	got = pod()
	assert.Equal(t, before.Spec, got.Spec)
	assert.Equal(t, before.OwnerReferences, got.OwnerReferences)
	assert.Nil(t, got.DeletionTimestamp)
	require.NoError(t, patch(`{"metadata":{"finalizers":null}}`))

	// The pod itself is out of reach.
	for _, what := range []string{"patch pods", "update pods", "update pods/status", "delete pods", "create pods/eviction", "list pods", "patch nodes"} {
		verb, resource, _ := strings.Cut(what, " ")
		assert.False(t, allowed(t, w.admin, user, permission(verb, resource)), what)
	}
	calls := w.s.Calls(t, user)
	assert.NotZero(t, calls["patch pods/status"])
	for what := range calls {
		assert.Equal(t, "patch pods/status", what)
	}
}
