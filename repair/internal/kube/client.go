// Package kube is the repair controller's client for the API server. It has only the kinds and verbs that the controller
// uses: a full clientset would take several times the rest of the package in memory and in the binary.
package kube

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/podlist"
	"github.com/meshcni/meshcni/internal/podpatch"
)

// scheme has the kinds that the client uses.
var scheme = runtime.NewScheme()

func init() {
	for gv, kinds := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:          {&corev1.Pod{}, &corev1.PodList{}, &corev1.Namespace{}, &corev1.Event{}},
		policyv1.SchemeGroupVersion:        {&policyv1.Eviction{}},
		authorizationv1.SchemeGroupVersion: {&authorizationv1.SelfSubjectAccessReview{}},
	} {
		scheme.AddKnownTypes(gv, kinds...)
		metav1.AddToGroupVersion(scheme, gv)
	}
}

// Client talks to an API server. It is safe for concurrent use. As a Prometheus collector it counts its requests.
type Client struct {
	prometheus.Collector

	// Keep returns what is kept of a pod; nil: all of it.
	Keep func(*corev1.Pod) *corev1.Pod

	node, component     string
	core, authorization rest.Interface
}

// New returns a client with the configuration's credentials, which reads the pods of one node only. It sends no request. Requests
// are in protobuf.
func New(of meshcni.Identity, config *rest.Config, node string) (*Client, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: of.Metric("pods_api_requests_total"),
		Help: "Requests of the controller of running pods to the API server, by HTTP method and status (error: no answer).",
	}, []string{"method", "http_status"})
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, requests} })
	c := &Client{Collector: requests, node: node, component: of.Program("repair")}
	for gv, client := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion:          &c.core,
		authorizationv1.SchemeGroupVersion: &c.authorization,
	} {
		config.GroupVersion, config.APIPath = &gv, "/apis"
		if gv.Group == "" {
			config.APIPath = "/api"
		}
		made, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("make API client: %w", err)
		}
		*client = made
	}
	return c, nil
}

// counting counts requests.
type counting struct {
	next  http.RoundTripper
	count *prometheus.CounterVec
}

// RoundTrip implements [http.RoundTripper].
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	code := "error"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	c.count.WithLabelValues(r.Method, code).Inc()
	return resp, err
}

// nodeField is the field by which pods are selected by their node.
const nodeField = "spec.nodeName"

// Pods lists and watches the pods of one node. Each pod of a list is cut down by Keep before the next is read.
func (c *Client) Pods(node, labelSelector string) cache.ListerWatcher {
	whole := cache.NewFilteredListWatchFromClient(c.core, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(nodeField, node).String()
		o.LabelSelector = labelSelector
	})
	if c.Keep == nil {
		return whole
	}
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector, o.LabelSelector = fields.OneTermEqualSelector(nodeField, node).String(), labelSelector
		body, err := c.core.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec).Stream(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { _ = body.Close() }()
		pods, err := podlist.Decode(body, c.Keep)
		if err != nil {
			return nil, fmt.Errorf("read the list of the node's pods: %w", err)
		}
		return pods, nil
	}
	return &cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: whole.WatchFuncWithContext}
}

// into sends a request and decodes the answer.
func into[T runtime.Object](ctx context.Context, r *rest.Request, out T) (T, error) {
	return out, r.Do(ctx).Into(out)
}

// Pod reads a pod of the client's node. It lists what has the name there: an API server looks that up like a get, and an authorizer
// that binds reads to the node sees that this one is.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	one := fields.SelectorFromSet(fields.Set{metav1.ObjectNameField: name, nodeField: c.node})
	list, err := into(ctx, c.core.Get().Namespace(namespace).Resource("pods").
		VersionedParams(&metav1.ListOptions{FieldSelector: one.String()}, metav1.ParameterCodec), &corev1.PodList{})
	switch {
	case err != nil:
		return nil, err
	case len(list.Items) == 0:
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return &list.Items[0], nil
}

// Namespace reads a namespace.
func (c *Client) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return into(ctx, c.core.Get().Resource("namespaces").Name(name), &corev1.Namespace{})
}

// Label sets a label through the pod's status, or removes it if the value is empty. The UID and resource version in the
// patch are preconditions.
func (c *Client) Label(ctx context.Context, pod *corev1.Pod, key, value string) (*corev1.Pod, error) {
	patch, err := podpatch.Patch(pod.UID, pod.ResourceVersion, "labels", key, value)
	if err != nil {
		return nil, err
	}
	out, err := into(ctx, c.core.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("status").Body(patch), &corev1.Pod{})
	return out, podpatch.Answer(pod.Name, err)
}

func deleteOptions(pod *corev1.Pod) *metav1.DeleteOptions {
	o := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	if pod.ResourceVersion != "" {
		o.Preconditions.ResourceVersion = &pod.ResourceVersion
	}
	return o
}

// Evict evicts a pod. It does not wait and retry when the server answers 429, as client-go would: the controller's queue
// does that.
func (c *Client) Evict(ctx context.Context, pod *corev1.Pod) error {
	return c.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: deleteOptions(pod)}).
		MaxRetries(0).Do(ctx).Error()
}

// Delete deletes a pod.
func (c *Client) Delete(ctx context.Context, pod *corev1.Pod) error {
	return c.core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Body(deleteOptions(pod)).Do(ctx).Error()
}
