package kubetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Admin is who may do everything: users, kubelets and controllers in one.
type Admin struct {
	client *http.Client
	url    string
}

// Admin returns the server's.
func (s *Server) Admin(tb testing.TB) *Admin {
	tb.Helper()
	config, err := s.Config(AdminToken)
	require.NoError(tb, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(tb, err)
	return &Admin{client, config.Host}
}

// Do makes one request and reads the answer into out, if not nil. It fails the
// test unless the answer is a success.
func (a *Admin) Do(tb testing.TB, method, path string, in, out any) {
	tb.Helper()
	require.NoError(tb, a.Try(method, path, in, out))
}

// Try is Do for a request that may be refused: the error has the answer's status
// and text. A patch is a merge patch.
func (a *Admin) Try(method, path string, in, out any) error {
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

// PodPath is where a pod is.
func PodPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// Namespace makes a namespace with a name of its own.
func (a *Admin) Namespace(tb testing.TB) string {
	tb.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	a.Do(tb, http.MethodPost, "/api/v1/namespaces", ns, ns)
	return ns.Name
}

// Create makes a pod, which gets another UID, and gives it its status.
func (a *Admin) Create(tb testing.TB, pod *corev1.Pod) *corev1.Pod {
	tb.Helper()
	made := &corev1.Pod{}
	send := pod.DeepCopy()
	send.UID, send.ResourceVersion = "", ""
	a.Do(tb, http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/pods", send, made)
	made.Status = pod.Status
	return a.SetStatus(tb, made)
}

// SetStatus writes the pod's status, as its kubelet does.
func (a *Admin) SetStatus(tb testing.TB, pod *corev1.Pod) *corev1.Pod {
	tb.Helper()
	out, send := &corev1.Pod{}, pod.DeepCopy()
	send.ResourceVersion = ""
	a.Do(tb, http.MethodPut, PodPath(pod.Namespace, pod.Name)+"/status", send, out)
	return out
}

// Pod reads a pod that must be there.
func (a *Admin) Pod(tb testing.TB, namespace, name string) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{}
	a.Do(tb, http.MethodGet, PodPath(namespace, name), nil, pod)
	return pod
}

// Remove deletes a pod at once.
func (a *Admin) Remove(tb testing.TB, namespace, name string) {
	tb.Helper()
	a.Do(tb, http.MethodDelete, PodPath(namespace, name)+"?gracePeriodSeconds=0", nil, nil)
}

// Events are the reasons of the events of a namespace, by the object's name.
func (a *Admin) Events(tb testing.TB, namespace string) map[string][]string {
	tb.Helper()
	var list corev1.EventList
	a.Do(tb, http.MethodGet, "/api/v1/namespaces/"+namespace+"/events", nil, &list)
	got := map[string][]string{}
	for i := range list.Items {
		e := &list.Items[i]
		got[e.InvolvedObject.Name] = append(got[e.InvolvedObject.Name], e.Reason)
	}
	return got
}

// ServiceAccount makes a service account, unless it is there, and returns a token
// of it that is good for an hour. The namespace has to be there.
func (a *Admin) ServiceAccount(tb testing.TB, namespace, name string) (token string) {
	tb.Helper()
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := a.Try(http.MethodPost, accounts, sa, nil); err != nil {
		require.ErrorContains(tb, err, "409")
	}
	request := &authenticationv1.TokenRequest{}
	a.Do(tb, http.MethodPost, accounts+"/"+name+"/token", request, request)
	return request.Status.Token
}
