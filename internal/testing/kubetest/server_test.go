package kubetest_test

import (
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m, kubetest.Options{})) }

func pod(namespace string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	a := kubetest.Shared(t).Admin(t)
	ns := a.Namespace(t)
	err := a.Try(http.MethodPost, "/api/v1/namespaces/"+ns+"/pods", pod(ns), nil)
	require.ErrorContains(t, err, "serviceaccount", "as in a real cluster, a pod needs its account")
	a.ServiceAccount(t, ns, "default")
	made := a.Create(t, pod(ns))
	assert.NotEmpty(t, made.UID)
	assert.NotEmpty(t, made.Spec.Volumes, "its token")
	a.Remove(t, ns, "web")
	require.ErrorContains(t, a.Try(http.MethodGet, kubetest.PodPath(ns, "web"), nil, nil), "404")
}

// TestWhoAsked: users by token and by certificate are told apart, may do what
// they may, and are found in the log.
func TestWhoAsked(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Binary("kubectl"))
	s := kubetest.Shared(t)
	a := s.Admin(t)
	ns := a.Namespace(t)
	token := a.ServiceAccount(t, ns, "some")
	byCertificate := func(user, group string) []string {
		cert, key := s.Certificate(t, user, []string{group})
		return []string{"--kubeconfig=" + s.Kubeconfig(t, ""), "--client-certificate=" + cert, "--client-key=" + key}
	}
	for want, as := range map[string][][]string{
		"": {{"--kubeconfig=" + s.Kubeconfig(t, kubetest.AdminToken)}, byCertificate("someone", "system:masters")},
		`User "system:serviceaccount:` + ns + `:some" cannot list resource "pods"`: {{"--kubeconfig=" + s.Kubeconfig(t, token)}},
		`User "system:node:node-1" cannot list resource "pods"`:                    {byCertificate("system:node:node-1", "system:bootstrap")},
	} {
		for _, flags := range as {
			out, err := exec.CommandContext(t.Context(), "kubectl", append(flags, "get", "pods", "-A")...).CombinedOutput()
			assert.Equal(t, want == "", err == nil, "%s", out)
			assert.Contains(t, string(out), want)
		}
	}
	assert.Positive(t, s.Calls(t, "system:serviceaccount:"+ns+":some")["list pods FORBIDDEN"])
	assert.Empty(t, s.Calls(t, "admin"), "the test's own requests are not logged")
}

// TestLend: the next test finds nothing that the one before has made, and its users may nothing.
func TestLend(t *testing.T) {
	t.Parallel()
	var first *kubetest.Server
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.Lend(t)
			a := s.Admin(t)
			if first == nil {
				first = s
			}
			require.Same(t, first, s)
			a.Do(t, http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, nil)
			token := a.ServiceAccount(t, "shop", "default")
			config, err := s.Config(token)
			require.NoError(t, err)
			client, err := kubernetes.NewForConfig(config)
			require.NoError(t, err)
			_, err = client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			a.Create(t, pod("shop"))
			a.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", map[string]any{
				"metadata": map[string]any{"name": "all"}, "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-view"},
				"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "shop", "name": "default"}},
			}, nil)
			require.Eventually(t, func() bool {
				_, err = client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
				return err == nil
			}, netnstest.Patience, 10*time.Millisecond, "%v", &err)
		})
	}
}

// TestRestart: what was written is there when the server comes back.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := kubetest.Own(t, kubetest.Options{Bind: netip.IPv4Unspecified()})
	a := s.Admin(t)
	name := a.Namespace(t)
	s.StopAPI()
	require.Error(t, a.Try(http.MethodGet, "/api/v1/namespaces/"+name, nil, nil))
	require.NoError(t, s.StartAPI())
	a.Do(t, http.MethodGet, "/api/v1/namespaces/"+name, nil, nil)
}
