package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// scheme has the kinds that are used and no others: the whole clientset's would
// be several times this package's share of the binary and of memory.
var scheme = runtime.NewScheme()

var parameters runtime.ParameterCodec

func init() {
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{}, &corev1.Namespace{}, &corev1.Event{})
	scheme.AddKnownTypes(policyv1.SchemeGroupVersion, &policyv1.Eviction{})
	scheme.AddKnownTypes(authorizationv1.SchemeGroupVersion, &authorizationv1.SelfSubjectAccessReview{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	for _, gv := range []schema.GroupVersion{
		corev1.SchemeGroupVersion, policyv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion,
	} {
		metav1.AddToGroupVersion(scheme, gv)
	}
	parameters = runtime.NewParameterCodec(scheme)
}

// Kube is a [Cluster] that talks to an API server. It is safe for concurrent use.
type Kube struct {
	core, auth, leases rest.Interface
	requests           *prometheus.CounterVec
}

var _ Cluster = (*Kube)(nil)

// NewKube returns a Kube with the configuration's credentials. It makes no
// request. Requests are in protobuf, and are counted by method and status code; see Kube.Collect.
func NewKube(config *rest.Config) (*Kube, error) {
	k := &Kube{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshcni_repair_api_requests_total",
		Help: "Requests to the API server, by HTTP method and status code (error: no answer).",
	}, []string{"method", "code"})}
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, k.requests} })
	for _, c := range []struct {
		to   *rest.Interface
		path string
		gv   schema.GroupVersion
	}{
		{&k.core, "/api", corev1.SchemeGroupVersion},
		{&k.auth, "/apis", authorizationv1.SchemeGroupVersion},
		{&k.leases, "/apis", coordinationv1.SchemeGroupVersion},
	} {
		config.APIPath, config.GroupVersion = c.path, &c.gv
		client, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("make API client: %w", err)
		}
		*c.to = client
	}
	return k, nil
}

// counting counts requests.
type counting struct {
	next  http.RoundTripper
	count *prometheus.CounterVec
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	code := "error"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	c.count.WithLabelValues(r.Method, code).Inc()
	return resp, err
}

// Describe and Collect implement prometheus.Collector.
func (k *Kube) Describe(ch chan<- *prometheus.Desc) { k.requests.Describe(ch) }

// Collect implements prometheus.Collector.
func (k *Kube) Collect(ch chan<- prometheus.Metric) { k.requests.Collect(ch) }

// Pods lists and watches the pods of one node. The label selector may be empty.
func (k *Kube) Pods(node, labelSelector string) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector, o.LabelSelector = selector, labelSelector
			list := &corev1.PodList{}
			err := k.core.Get().Resource("pods").VersionedParams(&o, parameters).Do(ctx).Into(list)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.LabelSelector, o.Watch = selector, labelSelector, true
			return k.core.Get().Resource("pods").VersionedParams(&o, parameters).Watch(ctx)
		},
	}
}

// Pod implements Cluster.
func (k *Kube) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := k.core.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod)
	return pod, err
}

// Namespace reads a namespace, for dialects that need it.
func (k *Kube) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := k.core.Get().Resource("namespaces").Name(name).Do(ctx).Into(ns)
	return ns, err
}

// Label implements Cluster. A resource version in a patch is a precondition to the
// server. So is a UID, though the server calls another one invalid.
func (k *Kube) Label(ctx context.Context, pod Ref, key, value string) (*corev1.Pod, error) {
	meta := map[string]any{"uid": pod.UID, "labels": map[string]any{key: value}}
	if value == "" {
		meta["labels"] = map[string]any{key: nil}
	}
	if pod.ResourceVersion != "" {
		meta["resourceVersion"] = pod.ResourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	err = k.core.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("status").Body(patch).Do(ctx).Into(out)
	if apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) && out.UID != pod.UID && strings.Contains(err.Error(), "metadata.uid") {
		err = apierrors.NewConflict(corev1.Resource("pods"), pod.Name, err)
	}
	return out, err
}

func (r Ref) deleteOptions() *metav1.DeleteOptions {
	o := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}
	if r.ResourceVersion != "" {
		o.Preconditions.ResourceVersion = &r.ResourceVersion
	}
	return o
}

// Evict implements Cluster.
func (k *Kube) Evict(ctx context.Context, pod Ref) error {
	return k.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		Body(&policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: pod.deleteOptions(),
		}).
		// A client that meets 429 waits and tries again by itself; here the queue does.
		MaxRetries(0).Do(ctx).Error()
}

// Delete implements Cluster.
func (k *Kube) Delete(ctx context.Context, pod Ref) error {
	return k.core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		Body(pod.deleteOptions()).Do(ctx).Error()
}

// Missing asks the server which of the permissions it would refuse. An error says
// that it could not be asked.
func (k *Kube) Missing(ctx context.Context, wanted []Permission) (missing []Permission, err error) {
	for _, p := range wanted {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: p.Verb, Group: p.Group, Resource: p.Resource, Subresource: p.Subresource, Namespace: p.Namespace, Name: p.Name,
			},
		}}
		err = errors.Join(err, k.auth.Post().Resource("selfsubjectaccessreviews").Body(review).Do(ctx).Into(review))
		if err == nil && !review.Status.Allowed {
			missing = append(missing, p)
		}
	}
	return missing, err
}
