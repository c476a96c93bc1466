package kubetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Admin may do everything, and plays users, kubelets and controllers.
type Admin struct {
	client *http.Client
	url    string
}

// Admin returns the server's Admin.
func (s *Server) Admin(tb testing.TB) *Admin {
	tb.Helper()
	a, err := s.admin(0)
	require.NoError(tb, err)
	return a
}

func (s *Server) admin(timeout time.Duration) (*Admin, error) {
	config, err := s.Config(AdminToken)
	if err != nil {
		return nil, err
	}
	config.Timeout = timeout
	client, err := rest.HTTPClientFor(config)
	return &Admin{client, config.Host}, err
}

// Do is [Admin.Try] for a request that must succeed.
func (a *Admin) Do(tb testing.TB, method, path string, in, out any) {
	tb.Helper()
	require.NoError(tb, a.Try(method, path, in, out))
}

// Try sends a request with in as JSON, unless it is nil, and decodes the answer into out, unless that is nil. A patch is a
// merge patch. The error of an unsuccessful request has the answer's status and text.
func (a *Admin) Try(method, path string, in, out any) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequest(method, a.url+path, &body) //nolint:noctx // a test's own
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	case out == nil:
		return nil
	}
	return json.Unmarshal(answer, out)
}

// PodPath returns the path of a pod.
func PodPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// Namespace creates a namespace with a new name.
func (a *Admin) Namespace(tb testing.TB) string {
	tb.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	a.Do(tb, http.MethodPost, "/api/v1/namespaces", ns, ns)
	return ns.Name
}

// Create creates a pod, which gets a new UID, with its status.
func (a *Admin) Create(tb testing.TB, pod *corev1.Pod) *corev1.Pod {
	tb.Helper()
	made := &corev1.Pod{}
	send := pod.DeepCopy()
	send.UID, send.ResourceVersion = "", ""
	a.Do(tb, http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/pods", send, made)
	made.Status = pod.Status
	return a.SetStatus(tb, made)
}

// SetStatus writes the pod's status, as a kubelet does.
func (a *Admin) SetStatus(tb testing.TB, pod *corev1.Pod) *corev1.Pod {
	tb.Helper()
	out, send := &corev1.Pod{}, pod.DeepCopy()
	send.ResourceVersion = ""
	a.Do(tb, http.MethodPut, PodPath(pod.Namespace, pod.Name)+"/status", send, out)
	return out
}

// Pod reads a pod that must exist.
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

// Events returns the reasons of a namespace's events, by the name of the object.
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

// ServiceAccount creates a service account unless it exists, and returns a token for it that is valid for an hour.
func (a *Admin) ServiceAccount(tb testing.TB, namespace, name string) (token string) {
	tb.Helper()
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := a.Try(http.MethodPost, accounts, sa, nil); err != nil {
		require.ErrorContains(tb, err, "409")
	}
	return a.token(tb, namespace, name, nil)
}

// TokenOfNode is the same with a token that names a node, as those have that a kubelet asks for. The node must exist.
func (a *Admin) TokenOfNode(tb testing.TB, namespace, name, node string) (token string) {
	tb.Helper()
	a.ServiceAccount(tb, namespace, name)
	return a.token(tb, namespace, name, &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node})
}

func (a *Admin) token(tb testing.TB, namespace, name string, bound *authenticationv1.BoundObjectReference) string {
	tb.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	a.Do(tb, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+name+"/token", request, request)
	return request.Status.Token
}

// Parallel calls fn for 0 to n-1, eight at a time, and returns when all have returned.
func Parallel(n int, fn func(int)) {
	var all errgroup.Group
	all.SetLimit(8)
	for i := range n {
		all.Go(func() error {
			fn(i)
			return nil
		})
	}
	_ = all.Wait() // nobody returns an error
}
