package kubepod

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Accepted is the Accept header of every request. Protobuf halves the time of a GET on an open connection (see
// BenchmarkPod); a proxy or a very small API server may answer with JSON.
const Accepted = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON

// A Client reads pods and namespaces with the credentials of one kubeconfig. It is safe for concurrent use. Make it with
// [Open]; the zero Client does not work.
type Client struct {
	rest      *rest.RESTClient
	transport *http.Transport
}

// Open reads the kubeconfig and prepares a client for its current context, without connecting. Inline credentials are read
// once, so after a 401 call Open again; client-go rereads a tokenFile by itself.
//
// The error is a *[ConfigError]. A user with an exec or auth-provider entry is refused: a plugin that runs as root for
// every pod should not start credential helpers.
func Open(kubeconfigPath string) (*Client, error) {
	c, err := open(kubeconfigPath)
	if err != nil {
		return nil, &ConfigError{Path: kubeconfigPath, Err: err}
	}
	return c, nil
}

func open(kubeconfigPath string) (*Client, error) {
	config, err := load(kubeconfigPath)
	if err != nil {
		return nil, err
	}
	transport, err := transportFor(config)
	if err != nil {
		return nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, limited{transport})
	if err != nil {
		return nil, err
	}
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = codecs()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = Accepted
	config.QPS = -1 // no limiter: one process makes one request
	config.WarningHandler = rest.NoWarnings{}
	r, err := rest.RESTClientForConfigAndClient(config, &http.Client{
		Transport: wrapped,
		// A redirect would be a second request, and would carry the token to whatever host it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	if err != nil {
		return nil, err
	}
	return &Client{rest: r, transport: transport}, nil
}

// codecs knows only the three kinds that an answer can have: registering all of core/v1 costs more than decoding a pod.
func codecs() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.Namespace{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}

// Close closes idle connections. A process that exits right after its request need not call it.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Pod makes one GET for the pod; ctx limits all of it. The package documentation lists its errors.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.get(ctx, "Pod", namespace, name, pod)
	if err == nil && (pod.Namespace != namespace || pod.Name != name) {
		err = &ResponseError{Kind: "Pod", Err: fmt.Errorf("it is named %q in namespace %q", pod.Name, pod.Namespace)}
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// Namespace makes one GET for the namespace, for dialects that use its labels or annotations. Errors are those of
// [Client.Pod].
func (c *Client) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := c.get(ctx, "Namespace", "", name, ns)
	if err == nil && ns.Name != name {
		err = &ResponseError{Kind: "Namespace", Err: fmt.Errorf("it is named %q", ns.Name)}
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return ns, nil
}

// PatchPodStatus makes one PATCH, a JSON merge patch, of the pod's subresource "status". That subresource accepts
// annotations and leaves the spec alone, so the token need not have the right to change what a pod runs. Errors are those
// of [Client.Pod]; if the patch names another UID than the pod's, apierrors.IsConflict or apierrors.IsInvalid holds.
func (c *Client) PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error {
	err := errors.Join(checkName("namespace", namespace), checkName("name", name))
	if err == nil {
		err = c.rest.Patch(types.MergePatchType).MaxRetries(0).BackOffWithContext(nil).Namespace(namespace).Resource("pods").
			Name(name).SubResource("status").Body(patch).Do(klog.NewContext(ctx, klog.Logger{})).Error()
	}
	if err != nil {
		return fmt.Errorf("patch status of pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

func (c *Client) get(ctx context.Context, kind, namespace, name string, into runtime.Object) error {
	if err := checkName("name", name); err != nil {
		return err
	}
	// By itself, client-go would retry ten times after a Retry-After, and back off as KUBE_CLIENT_BACKOFF_* say.
	request := c.rest.Get().MaxRetries(0).BackOffWithContext(nil)
	if kind == "Pod" {
		if err := checkName("namespace", namespace); err != nil {
			return err
		}
		request = request.Namespace(namespace).Resource("pods")
	} else {
		request = request.Resource("namespaces")
	}
	// The zero logger discards: klog's lines would break the stream of JSON records on stderr, and the error says it all.
	result := request.Name(name).Do(klog.NewContext(ctx, klog.Logger{}))
	if err := result.Error(); err != nil {
		return err
	}
	// Another kind that the scheme knows leaves into as it was, without an error: the callers compare the name.
	if err := result.Into(into); err != nil {
		return &ResponseError{Kind: kind, Err: err}
	}
	return nil
}

func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("empty %s: %w", what, ErrName)
	}
	if problems := content.IsPathSegmentName(name); len(problems) > 0 {
		return fmt.Errorf("%s %q %s: %w", what, name, problems[0], ErrName)
	}
	return nil
}

var errHelper = errors.New("it has an exec or auth-provider entry, and the plugin runs no credential helper; use a token, tokenFile or client certificate")
