package integration

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// servers are without the plugin that wants a pod's service account to be there,
// which nobody makes here.
var servers = kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}

func TestMain(m *testing.M) {
	code := kubetest.Main(m, servers)
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

// admin is who may do everything; with what repairtest wants besides it is a
// clusterAdmin.
type admin struct{ *kubetest.Admin }

func newAdmin(t testing.TB, s *kubetest.Server) *admin {
	t.Helper()
	return &admin{s.Admin(t)}
}

// Touch implements clusterAdmin.
func (a *admin) Touch(t testing.TB, namespace, name string) {
	t.Helper()
	pod := a.Pod(t, namespace, name)
	a.Do(t, http.MethodPatch, kubetest.PodPath(namespace, name), map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{"meshcni.io/touched": pod.ResourceVersion}},
	}, nil)
}

// Block implements clusterAdmin.
func (a *admin) Block(t testing.TB, namespace string) {
	t.Helper()
	all := intstr.FromString("100%")
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: &metav1.LabelSelector{}},
	}
	path := "/apis/policy/v1/namespaces/" + namespace + "/poddisruptionbudgets"
	a.Do(t, http.MethodPost, path, pdb, pdb)
	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, ExpectedPods: 1, DesiredHealthy: 1}
	a.Do(t, http.MethodPut, path+"/all/status", pdb, nil)
}

// Unblock takes the budget away.
func (a *admin) Unblock(t testing.TB, namespace string) {
	t.Helper()
	a.Do(t, http.MethodDelete, "/apis/policy/v1/namespaces/"+namespace+"/poddisruptionbudgets/all", nil, nil)
}

// away reports whether the pod of the UID is gone, or deleting.
func (a *admin) away(namespace, name, uid string) bool {
	pod := &corev1.Pod{}
	err := a.Try(http.MethodGet, kubetest.PodPath(namespace, name), nil, pod)
	if err != nil {
		return strings.Contains(err.Error(), "404")
	}
	return string(pod.UID) != uid || pod.DeletionTimestamp != nil
}

// rss is the resident memory of a process in MB.
func rss(t testing.TB, pid int) (now, peak float64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	return kilobytes(string(status), "VmRSS:") / 1024, kilobytes(string(status), "VmHWM:") / 1024
}

// kilobytes reads a line of /proc/PID/status.
func kilobytes(status, key string) float64 {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n
		}
	}
	return 0
}

// reads counts how often a user has read a single pod, which is a list of one.
func reads(t testing.TB, s *kubetest.Server, user string) (n int) {
	t.Helper()
	for _, c := range s.Audit(t) {
		if c.User.Username == user && c.Verb == "list" && c.ObjectRef.Resource == "pods" && c.ObjectRef.Name != "" {
			n++
		}
	}
	return n
}

// statusCode is the code of the answer to a GET.
func statusCode(t testing.TB, config *rest.Config, path string) int {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}
