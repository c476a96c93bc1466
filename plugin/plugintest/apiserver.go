package plugintest

import (
	"bytes"
	"context"
	"crypto/tls"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
)

// An APIServer is a TLS server on loopback that answers what a plugin asks,
//
//	GET /api/v1/namespaces/{namespace}/pods/{name}
//	GET /api/v1/namespaces/{name}
//	PATCH /api/v1/namespaces/{namespace}/pods/{name}/status
//
// from the pods that a test has set: in protobuf when the request accepts that, else in JSON, with a
// Kubernetes Status for 401, 404 and 405, as a real one does. Every request is counted, and a [Hook] can spoil any of them.
//
// What it is not: it keeps no resource versions, has no lists or watches and no writes but merge patches of annotations, checks one bearer token and no
// RBAC, and speaks HTTP/1.1 and HTTP/2 with a certificate for 127.0.0.1 and localhost. All methods are safe for concurrent use.
type APIServer struct {
	url      string
	caPEM    []byte
	http     *http.Server
	stop     context.CancelFunc
	stopped  chan struct{}
	encoders map[string]runtime.Encoder

	mu         sync.Mutex
	token      string
	pods       map[string]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	hook       Hook
	requests   []string
}

// NewAPIServer starts an APIServer that ends with the test.
func NewAPIServer(tb testing.TB) *APIServer {
	tb.Helper()
	s, err := StartAPIServer()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// StartAPIServer starts an APIServer on a free port of 127.0.0.1, for programs that are no test. The caller closes it.
func StartAPIServer() (*APIServer, error) {
	cert, caPEM, err := serverCertificate()
	if err != nil {
		return nil, fmt.Errorf("start test API server: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start test API server: %w", err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.Namespace{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	ctx, stop := context.WithCancel(context.Background())
	s := &APIServer{
		url:     "https://" + listener.Addr().String(),
		caPEM:   caPEM,
		stop:    stop,
		stopped: make(chan struct{}),
		encoders: map[string]runtime.Encoder{
			runtime.ContentTypeProtobuf: protobuf.NewSerializer(scheme, scheme),
			runtime.ContentTypeJSON:     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		},
		token:      "plugintest-token",
		pods:       map[string]*corev1.Pod{},
		namespaces: map[string]*corev1.Namespace{},
	}
	s.http = &http.Server{
		Handler:     s,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		BaseContext: func(net.Listener) context.Context { return ctx },
		// Tests provoke failed handshakes and aborted answers; the client's error is the one that counts.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() {
		defer close(s.stopped)
		_ = s.http.ServeTLS(listener, "", "") // always ErrServerClosed, after Close
	}()
	return s, nil
}

// Close drops every connection, ends waiting hooks and stops the server. Later connections are refused. Calling it
// again does nothing.
func (s *APIServer) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.stopped
}

// URL is "https://127.0.0.1:port".
func (s *APIServer) URL() string { return s.url }

// CA is the PEM certificate that a client has to trust.
func (s *APIServer) CA() []byte { return bytes.Clone(s.caPEM) }

// Token is the bearer token that requests must carry.
func (s *APIServer) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// SetToken changes the token that is accepted: kubeconfigs written before then get 401. Empty accepts any request.
func (s *APIServer) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// SetPod stores a copy of the pod under its namespace and name, replacing any other. Its namespace comes to exist too.
func (s *APIServer) SetPod(pod *corev1.Pod) {
	stored := pod.DeepCopy()
	stored.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod.Namespace+"/"+pod.Name] = stored
	if s.namespaces[pod.Namespace] == nil {
		s.setNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}})
	}
}

// DeletePod forgets the pod, so that it is answered with 404.
func (s *APIServer) DeletePod(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, namespace+"/"+name)
}

// SetNamespace stores a copy of the namespace, replacing any other of its name.
func (s *APIServer) SetNamespace(ns *corev1.Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setNamespace(ns.DeepCopy())
}

func (s *APIServer) setNamespace(ns *corev1.Namespace) {
	ns.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
	s.namespaces[ns.Name] = ns
}

// Handle installs a hook for the requests from now on, in place of any other; nil removes it.
func (s *APIServer) Handle(hook Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// Requests lists the requests so far, oldest first, each as "METHOD path", refused and spoiled ones included.
func (s *APIServer) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.requests...)
}

// ServeHTTP implements http.Handler.
func (s *APIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	n, hook, token := len(s.requests), s.hook, s.token
	s.mu.Unlock()
	// The hook runs without the lock, so that it can set and delete pods.
	if hook != nil && hook(n, w, r) {
		return
	}
	switch {
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		WriteStatus(w, http.StatusUnauthorized, "Unauthorized")
	case r.Method == http.MethodPatch:
		s.patch(w, r)
	case r.Method != http.MethodGet:
		WriteStatus(w, http.StatusMethodNotAllowed, r.Method+" is not served")
	default:
		s.get(w, r, r.URL.Path)
	}
}

var errNotServed = errors.New("the server could not find the requested resource")

func (s *APIServer) get(w http.ResponseWriter, r *http.Request, path string) {
	contentType := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		contentType = runtime.ContentTypeProtobuf
	}
	obj, err := s.find(path)
	if err != nil {
		WriteStatus(w, http.StatusNotFound, err.Error())
		return
	}
	var body bytes.Buffer
	if err := s.encoders[contentType].Encode(obj, &body); err != nil {
		WriteStatus(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(body.Bytes()) // the client has gone: nothing to tell it
}

// patch takes a merge patch of a pod's annotations, through its status.
func (s *APIServer) patch(w http.ResponseWriter, r *http.Request) {
	var patch struct {
		Metadata struct {
			UID         types.UID         `json:"uid"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	// Of the pod itself nobody here has the right to patch anything.
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	obj, err := s.find(path)
	pod, isPod := obj.(*corev1.Pod)
	switch {
	case err != nil:
		WriteStatus(w, http.StatusNotFound, err.Error())
		return
	case !status:
		WriteStatus(w, http.StatusForbidden, "only the status of pods may be patched")
		return
	case !isPod || r.Header.Get("Content-Type") != string(types.MergePatchType) || stdjson.NewDecoder(r.Body).Decode(&patch) != nil:
		WriteStatus(w, http.StatusUnsupportedMediaType, "only merge patches of a pod's annotations are served")
		return
	case patch.Metadata.UID != "" && patch.Metadata.UID != pod.UID:
		WriteStatus(w, http.StatusConflict, fmt.Sprintf("uid in precondition: %s, uid in object meta: %s", patch.Metadata.UID, pod.UID))
		return
	}
	patched := pod.DeepCopy()
	if patched.Annotations == nil {
		patched.Annotations = map[string]string{}
	}
	maps.Copy(patched.Annotations, patch.Metadata.Annotations)
	s.SetPod(patched)
	s.get(w, r, path)
}

// Pod returns the pod as it is now, or nil.
func (s *APIServer) Pod(namespace, name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[namespace+"/"+name].DeepCopy()
}

func (s *APIServer) find(path string) (runtime.Object, error) {
	rest, ok := strings.CutPrefix(path, "/api/v1/namespaces/")
	if !ok {
		return nil, errNotServed
	}
	parts := strings.Split(rest, "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	// Stored objects are replaced, never changed: they can be encoded without the lock.
	switch {
	case len(parts) == 1:
		if ns := s.namespaces[parts[0]]; ns != nil {
			return ns, nil
		}
		return nil, fmt.Errorf("namespaces %q not found", parts[0])
	case len(parts) == 3 && parts[1] == "pods":
		if pod := s.pods[parts[0]+"/"+parts[2]]; pod != nil {
			return pod, nil
		}
		return nil, fmt.Errorf("pods %q not found", parts[2])
	}
	return nil, errNotServed
}
