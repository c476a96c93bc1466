// Package api talks to the API server for a node's agent, and nothing else in the agent does. A [Client] has the verbs that the agent uses, each
// in the file that has the right it needs (May…): the roles of the chart and of deploy/rbac are held to these. A full clientset would take
// several times the rest of the agent in memory and in the binary.
package api

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
)

// Right is what a request needs. An empty namespace or name means all.
type Right = authorizationv1.ResourceAttributes

// Text returns, for example, "patch pods/status".
func Text(r Right) string {
	s := r.Verb + " " + r.Resource
	for _, part := range [][2]string{{"/", r.Subresource}, {".", r.Group}, {" ", r.Name}, {" in namespace ", r.Namespace}} {
		if part[1] != "" {
			s += part[0] + part[1]
		}
	}
	return s
}

// The bounds of a client's requests, so that a node full of broken pods does not overload the API server: those of Istio's own agent. At a start,
// each of a node's pods may need one request.
const (
	requestsPerSecond = 80
	requestsAtOnce    = 160
)

// Client talks to an API server. It is safe for concurrent use. As a Prometheus collector it counts its requests. Errors are those of the
// Kubernetes API:
//
//	apierrors.IsNotFound(err)        // nothing has the name
//	apierrors.IsConflict(err)        // the UID or resource version differs
//	apierrors.IsTooManyRequests(err) // a disruption budget forbids the eviction
//	apierrors.IsForbidden(err)       // a right is missing
type Client struct {
	prometheus.Collector

	node                                      string
	core, apps, authentication, authorization rest.Interface
	meta                                      metadata.Interface
}

// New returns a client with the configuration's credentials, which reads the pods of one node only. Without a QPS of its own, the configuration
// has 80 requests a second, 160 at once. It sends no request.
func New(id meshcni.Identity, config *rest.Config, node string) (*Client, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: id.WithDefaults().Metric("pods_api_requests_total"),
		Help: "Requests of the node's agent, or of its repair, to the API server, by HTTP method and status (error: no answer).",
	}, []string{"method", "http_status"})
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, requests} })
	if config.QPS == 0 {
		config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	}
	// Requests are small. Lists of pods are not, and take a third of the processor's time in protobuf.
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	c := &Client{Collector: requests, node: node}
	for group, client := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.core, appsv1.SchemeGroupVersion: &c.apps,
		authenticationv1.SchemeGroupVersion: &c.authentication, authorizationv1.SchemeGroupVersion: &c.authorization,
	} {
		config.NegotiatedSerializer, config.GroupVersion, config.APIPath = codecs, &group, "/apis"
		if group.Group == "" {
			config.APIPath = "/api"
		}
		made, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("make API client: %w", err)
		}
		*client, config.RateLimiter = made, made.GetRateLimiter() // one for all
	}
	var err error
	if c.meta, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return c, nil
}

// scheme has the kinds that are sent and read whole.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for group, kinds := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:           {&corev1.Pod{}, &corev1.PodList{}, &corev1.Namespace{}, &corev1.Event{}, &corev1.Node{}},
		appsv1.SchemeGroupVersion:           {&appsv1.DaemonSet{}},
		policyv1.SchemeGroupVersion:         {&policyv1.Eviction{}},
		authorizationv1.SchemeGroupVersion:  {&authorizationv1.SelfSubjectAccessReview{}},
		authenticationv1.SchemeGroupVersion: {&authenticationv1.SelfSubjectReview{}, &authenticationv1.TokenRequest{}},
	} {
		s.AddKnownTypes(group, kinds...)
		metav1.AddToGroupVersion(s, group)
	}
	return s
}()

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
