package kubetest_test

import (
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/internal/proctest"
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
	for kubeconfig, want := range map[string]string{
		s.Kubeconfig(t, kubetest.AdminToken):                          "",
		s.UserKubeconfig(t, "someone", "system:masters"):              "",
		s.Kubeconfig(t, token):                                        `User "system:serviceaccount:` + ns + `:some" cannot list resource "pods"`,
		s.UserKubeconfig(t, "system:node:node-1", "system:bootstrap"): `User "system:node:node-1" cannot list resource "pods"`,
	} {
		out, err := exec.CommandContext(t.Context(), "kubectl", "--kubeconfig="+kubeconfig, "get", "pods", "-A").CombinedOutput()
		assert.Equal(t, want == "", err == nil, "%s", out)
		assert.Contains(t, string(out), want)
	}
	assert.Positive(t, s.Calls(t, "system:serviceaccount:"+ns+":some")["list pods FORBIDDEN"])
	assert.Empty(t, s.Calls(t, "admin"), "the test's own requests are not logged")
}

// TestInANamespace: a server in a network namespace of its own, at the address
// and port that a cluster's would have.
func TestInANamespace(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nsenter"))
	ns := netnstest.New(t)
	s := kubetest.Own(t, kubetest.Options{NetNS: ns.Path(), Bind: netip.IPv4Unspecified(), Port: 443})
	assert.Equal(t, "https://127.0.0.1:443", s.URL())
	a := s.Admin(t)
	name := a.Namespace(t)
	netnstest.Require(t, netnstest.Binary("kubectl"))
	kubeconfig := s.Kubeconfig(t, kubetest.AdminToken)
	out, err := proctest.Command(ns.Path(), "kubectl", "--kubeconfig="+kubeconfig, "get", "namespace", name).CombinedOutput()
	require.NoError(t, err, "%s", out)

	s.StopAPI()
	require.Error(t, a.Try(http.MethodGet, "/api/v1/namespaces/"+name, nil, nil))
	require.NoError(t, s.StartAPI())
	a.Do(t, http.MethodGet, "/api/v1/namespaces/"+name, nil, nil)
	assert.NotEmpty(t, s.Logs())
}
