package kubepod

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/meshcni/meshcni/internal/api/apianswer"
	"github.com/meshcni/meshcni/plugin"
)

// accepted is the Accept header of every request. Protobuf halves the time of a GET on an open connection (see
// BenchmarkPod); a proxy or a very small API server may answer with JSON.
const accepted = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON

// client reads pods and namespaces with the credentials of one kubeconfig.
type client struct {
	server string // without a slash at the end
	user   user
	proxy  *url.URL // of the kubeconfig; nil: none
	http   http.Client
}

// maxBody is the most that is read of one answer, in bytes. An object in etcd has at most 1.5 MiB (its --max-request-bytes
// default), which JSON can double.
const maxBody = 8 << 20

// Open reads the kubeconfig and prepares a source of pods by its current context, without connecting; it is safe for concurrent use. Inline credentials are read
// once, so after a 401 call Open again; a tokenFile is read again for each request.
//
// The error is a *[ConfigError]. A user with an exec or auth-provider entry is refused: a plugin that runs as root for
// every pod should not start credential helpers.
func Open(kubeconfigPath string) (plugin.Pods, error) {
	cluster, user, err := load(kubeconfigPath)
	var proxy *url.URL
	if err == nil {
		proxy, err = cluster.proxy()
	}
	var t *http.Transport
	if err == nil {
		t, err = transport(cluster, user, proxy)
	}
	if err != nil {
		return plugin.Pods{}, &ConfigError{Path: kubeconfigPath, Err: err}
	}
	c := &client{server: cluster.Server, user: user, proxy: proxy, http: http.Client{
		Transport: t,
		// A redirect would be a second request, and would carry the token to whatever host it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return plugin.Pods{
		Pod: c.pod, Namespace: c.namespace, PatchPodStatus: c.patchPodStatus, Transient: transient, Close: c.http.CloseIdleConnections,
	}, nil
}

// pod makes one GET for the pod; ctx limits all of it. The package documentation lists its errors.
func (c *client) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := errors.Join(checkName("namespace", namespace), checkName("name", name))
	if err == nil {
		err = c.get(ctx, "Pod", at("namespaces", namespace, "pods", name), pod)
	}
	pod.TypeMeta = metav1.TypeMeta{} // only JSON has it
	if err == nil && (pod.Namespace != namespace || pod.Name != name) {
		err = &responseError{kind: "Pod", err: fmt.Errorf("it is named %q in namespace %q", pod.Name, pod.Namespace)}
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// namespace makes one GET for the namespace, for dialects that use its labels or annotations. Errors are those of
// [client.pod].
func (c *client) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := checkName("name", name)
	if err == nil {
		err = c.get(ctx, "Namespace", at("namespaces", name), ns)
	}
	ns.TypeMeta = metav1.TypeMeta{}
	if err == nil && ns.Name != name {
		err = &responseError{kind: "Namespace", err: fmt.Errorf("it is named %q", ns.Name)}
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return ns, nil
}

// patchPodStatus makes one PATCH, a JSON merge patch, of the pod's subresource "status". That subresource accepts
// annotations and leaves the spec alone, so the token need not have the right to change what a pod runs. Errors are those
// of [client.pod]; if the patch names another UID than the pod's, apierrors.IsConflict or apierrors.IsInvalid holds.
func (c *client) patchPodStatus(ctx context.Context, namespace, name string, patch []byte) error {
	err := errors.Join(checkName("namespace", namespace), checkName("name", name))
	if err == nil {
		var answer *http.Response
		var body []byte
		if answer, body, err = c.do(ctx, http.MethodPatch, at("namespaces", namespace, "pods", name, "status"), patch); err == nil {
			err = c.refusal(answer, body, "Pod")
		}
	}
	if err != nil {
		return fmt.Errorf("patch status of pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// at is a path below that of core/v1.
func at(segments ...string) string {
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}

// object is any type of the API.
type object interface{ Unmarshal(protobuf []byte) error }

func (c *client) get(ctx context.Context, kind, path string, into object) error {
	answer, body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := decode(body, kind, into); err != nil {
		return cmp.Or(c.refusal(answer, body, kind), error(&responseError{kind: kind, err: err}))
	}
	return nil
}

// refusal returns what an answer says that has not the kind that was asked for (empty: any), or nil if it is another object of the API.
func (c *client) refusal(answer *http.Response, body []byte, kind string) error {
	var status metav1.Status
	if decode(body, "Status", &status) == nil && status.Status != metav1.StatusSuccess {
		status.Message = cmp.Or(status.Message, fmt.Sprintf("the API server answers %d %s without a word", answer.StatusCode, cmp.Or(string(status.Reason), http.StatusText(answer.StatusCode))))
		return &apierrors.StatusError{ErrStatus: status}
	}
	foreign := apianswer.Of(answer, body)
	if foreign == nil {
		return nil
	}
	err := apianswer.Through(c.proxy, "the kubeconfig's proxy-url", foreign)
	switch code := answer.StatusCode; code {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound: // these are the API server's to say
		return &responseError{kind: kind, err: err}
	default:
		wait, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
		return &responseError{kind: kind, err: err, status: apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", wait, true)}
	}
}

// do makes one request, and returns an answer that says success, and its body.
func (c *client) do(ctx context.Context, method, path string, patch []byte) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.server+"/api/v1/"+path, bytes.NewReader(patch))
	if err != nil {
		return nil, nil, err
	}
	request.Header = c.user.header()
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", string(types.MergePatchType))
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, nil, apianswer.Through(c.proxy, "the kubeconfig's proxy-url", err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(http.MaxBytesReader(nil, answer.Body, maxBody))
	if err != nil {
		return nil, nil, fmt.Errorf("read the answer: %w", err)
	}
	if answer.StatusCode >= http.StatusOK && answer.StatusCode <= http.StatusPartialContent {
		return answer, body, nil
	}
	return nil, nil, cmp.Or(c.refusal(answer, body, ""), error(&responseError{err: fmt.Errorf("%s with something else than a Status", answer.Status)}))
}

// decode reads an object of core/v1, in either format: which it is shows, whatever the header says.
func decode(body []byte, kind string, into object) error {
	text, binary := bytes.CutPrefix(body, apianswer.Magic)
	var raw runtime.Unknown
	if binary {
		if err := raw.Unmarshal(text); err != nil {
			return err
		}
	} else if err := json.Unmarshal(body, &raw.TypeMeta); err != nil {
		return err
	}
	switch {
	case raw.Kind != kind || raw.APIVersion != "v1":
		return fmt.Errorf("it is %q of %q", raw.Kind, raw.APIVersion)
	case binary:
		return into.Unmarshal(raw.Raw)
	}
	return json.Unmarshal(body, into)
}

func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("empty %s: %w", what, ErrInvalidName)
	}
	for _, segment := range []string{".", ".."} {
		if name == segment {
			return fmt.Errorf("%s %q may not be '%s': %w", what, name, segment, ErrInvalidName)
		}
	}
	if i := strings.IndexAny(name, "/%"); i >= 0 {
		return fmt.Errorf("%s %q may not contain '%c': %w", what, name, name[i], ErrInvalidName)
	}
	return nil
}
