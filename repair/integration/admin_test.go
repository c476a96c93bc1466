package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
)

// admin is who may do everything: users, kubelets and controllers in one.
type admin struct {
	client *http.Client
	url    string
}

func newAdmin(t testing.TB, s *server) *admin {
	t.Helper()
	config, err := s.config(adminToken)
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	return &admin{client, config.Host}
}

// do makes one request and reads the answer into out, if not nil. It fails the
// test unless the answer is a success.
func (a *admin) do(t testing.TB, method, path string, in, out any) {
	t.Helper()
	require.NoError(t, a.try(method, path, in, out))
}

func (a *admin) try(method, path string, in, out any) error {
	var body io.Reader
	kind := "application/json"
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	req, err := http.NewRequest(method, a.url+path, body) //nolint:noctx // a test's own
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// Namespace implements repairtest.Admin.
func (a *admin) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	a.do(t, http.MethodPost, "/api/v1/namespaces", ns, ns)
	return ns.Name
}

// Create implements repairtest.Admin.
func (a *admin) Create(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	made := &corev1.Pod{}
	send := pod.DeepCopy()
	send.UID, send.ResourceVersion = "", ""
	a.do(t, http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/pods", send, made)
	made.Status = pod.Status
	return a.setStatus(t, made)
}

// setStatus writes the pod's status, as its kubelet does.
func (a *admin) setStatus(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	out, send := &corev1.Pod{}, pod.DeepCopy()
	send.ResourceVersion = ""
	a.do(t, http.MethodPut, podPath(pod.Namespace, pod.Name)+"/status", send, out)
	return out
}

// Touch implements repairtest.Admin.
func (a *admin) Touch(t testing.TB, namespace, name string) {
	t.Helper()
	pod := a.pod(t, namespace, name)
	a.do(t, http.MethodPatch, podPath(namespace, name), map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{"meshcni.io/touched": pod.ResourceVersion}},
	}, nil)
}

// Remove implements repairtest.Admin.
func (a *admin) Remove(t testing.TB, namespace, name string) {
	t.Helper()
	a.do(t, http.MethodDelete, podPath(namespace, name)+"?gracePeriodSeconds=0", nil, nil)
}

// Block implements repairtest.Admin.
func (a *admin) Block(t testing.TB, namespace string) {
	t.Helper()
	all := intstr.FromString("100%")
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "all"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: &metav1.LabelSelector{}},
	}
	path := "/apis/policy/v1/namespaces/" + namespace + "/poddisruptionbudgets"
	a.do(t, http.MethodPost, path, pdb, pdb)
	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, ExpectedPods: 1, DesiredHealthy: 1}
	a.do(t, http.MethodPut, path+"/all/status", pdb, nil)
}

// Unblock takes the budget away.
func (a *admin) Unblock(t testing.TB, namespace string) {
	t.Helper()
	a.do(t, http.MethodDelete, "/apis/policy/v1/namespaces/"+namespace+"/poddisruptionbudgets/all", nil, nil)
}

// pod reads a pod that must be there.
func (a *admin) pod(t testing.TB, namespace, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	a.do(t, http.MethodGet, podPath(namespace, name), nil, pod)
	return pod
}

// away reports whether the pod of the UID is gone, or deleting.
func (a *admin) away(namespace, name, uid string) bool {
	pod := &corev1.Pod{}
	err := a.try(http.MethodGet, podPath(namespace, name), nil, pod)
	if err != nil {
		return strings.Contains(err.Error(), "404")
	}
	return string(pod.UID) != uid || pod.DeletionTimestamp != nil
}

// events are the reasons of the events of a namespace, by pod.
func (a *admin) events(t testing.TB, namespace string) map[string][]string {
	t.Helper()
	var list corev1.EventList
	a.do(t, http.MethodGet, "/api/v1/namespaces/"+namespace+"/events", nil, &list)
	got := map[string][]string{}
	for i := range list.Items {
		e := &list.Items[i]
		got[e.InvolvedObject.Name] = append(got[e.InvolvedObject.Name], e.Reason)
	}
	return got
}

// call is one request as the server's audit log has it.
type call struct {
	Verb      string `json:"verb"`
	AuditID   string `json:"auditID"`
	User      struct{ Username string }
	ObjectRef struct {
		Resource, Subresource, APIGroup string
	}
	ResponseStatus struct{ Code int }
}

// calls counts what a user asked of the server so far, by verb and resource.
func (s *server) calls(t testing.TB, user string) map[string]int {
	t.Helper()
	f, err := os.Open(s.file("audit.log"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	got, seen := map[string]int{}, map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c call
		if json.Unmarshal(lines.Bytes(), &c) != nil || c.User.Username != user || seen[c.AuditID] {
			continue
		}
		seen[c.AuditID] = true // a watch has a line for its start and one for its end
		what := c.Verb + " " + c.ObjectRef.Resource
		if c.ObjectRef.APIGroup != "" {
			what += "." + c.ObjectRef.APIGroup
		}
		if c.ObjectRef.Subresource != "" {
			what += "/" + c.ObjectRef.Subresource
		}
		if c.ResponseStatus.Code == http.StatusForbidden {
			what += " FORBIDDEN"
		}
		got[what]++
	}
	require.NoError(t, lines.Err())
	return got
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
