// Package apiservertest is an API server on loopback with the pods that a test says, and with the failures that a real one shows now and then.
package apiservertest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	stdjson "encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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
// with the pods that a test sets: in protobuf if the request accepts that, else in JSON, and with a Kubernetes Status for
// errors, like a real one. It counts every request, and a [Hook] can spoil any of them.
//
// It has no resource versions, lists or watches, takes no writes but merge patches of annotations, and checks one bearer
// token and no RBAC. Its certificate is for 127.0.0.1 and localhost. All methods are safe for concurrent use.
type APIServer struct {
	http     *httptest.Server
	caPEM    []byte
	stop     context.CancelFunc
	encoders map[string]runtime.Encoder

	mu       sync.Mutex
	token    string
	objects  map[string]runtime.Object // by path; replaced, never changed
	hook     Hook
	requests []string
}

// NewAPIServer starts an APIServer on a free port of 127.0.0.1, which ends with the test.
func NewAPIServer(tb testing.TB) *APIServer {
	tb.Helper()
	cert, caPEM, err := serverCertificate()
	if err != nil {
		tb.Fatal(err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.Namespace{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	s := &APIServer{
		caPEM: caPEM,
		encoders: map[string]runtime.Encoder{
			runtime.ContentTypeProtobuf: protobuf.NewSerializer(scheme, scheme),
			runtime.ContentTypeJSON:     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		},
		token:   "plugintest-token",
		objects: map[string]runtime.Object{},
	}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	ctx, stop := context.WithCancel(context.Background())
	s.http.Config.BaseContext, s.stop = func(net.Listener) context.Context { return ctx }, stop
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0) // tests provoke failed handshakes and aborted answers
	s.http.StartTLS()
	tb.Cleanup(s.Close)
	return s
}

// Close drops every connection, ends waiting hooks and stops the server. Calling it again does nothing.
func (s *APIServer) Close() {
	s.stop()
	s.http.CloseClientConnections()
	s.http.Close()
}

// URL is "https://127.0.0.1:port".
func (s *APIServer) URL() string { return s.http.URL }

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

func namespacePath(name string) string { return "/api/v1/namespaces/" + name }

func podPath(namespace, name string) string { return namespacePath(namespace) + "/pods/" + name }

// SetPod stores a copy of the pod under its namespace and name. It creates the namespace if necessary.
func (s *APIServer) SetPod(pod *corev1.Pod) {
	stored := pod.DeepCopy()
	stored.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	s.mu.Lock()
	s.objects[podPath(pod.Namespace, pod.Name)] = stored
	has := s.objects[namespacePath(pod.Namespace)] != nil
	s.mu.Unlock()
	if !has {
		s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}})
	}
}

// SetNamespace stores a copy of the namespace.
func (s *APIServer) SetNamespace(ns *corev1.Namespace) {
	stored := ns.DeepCopy()
	stored.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[namespacePath(ns.Name)] = stored
}

// DeletePod deletes the pod, so that requests for it get 404.
func (s *APIServer) DeletePod(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, podPath(namespace, name))
}

// Pod returns the pod as it is now, or nil.
func (s *APIServer) Pod(namespace, name string) *corev1.Pod {
	pod, _ := s.find(podPath(namespace, name)).(*corev1.Pod)
	return pod.DeepCopy()
}

func (s *APIServer) find(path string) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

// Handle sets the hook for all later requests; nil removes it.
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

func (s *APIServer) serve(w http.ResponseWriter, r *http.Request) {
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

func (s *APIServer) get(w http.ResponseWriter, r *http.Request, path string) {
	contentType := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		contentType = runtime.ContentTypeProtobuf
	}
	obj := s.find(path)
	if obj == nil {
		notFound(w, path)
		return
	}
	var body bytes.Buffer
	if err := s.encoders[contentType].Encode(obj, &body); err != nil {
		WriteStatus(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(body.Bytes()) // if the client has gone, there is nobody to tell
}

func notFound(w http.ResponseWriter, path string) {
	parts := strings.Split(path, "/")
	WriteStatus(w, http.StatusNotFound, fmt.Sprintf("%s %q not found", parts[max(0, len(parts)-2)], parts[len(parts)-1]))
}

// patch applies a merge patch of a pod's annotations through its status. Nobody here has the right to patch the pod itself.
func (s *APIServer) patch(w http.ResponseWriter, r *http.Request) {
	var patch struct {
		Metadata struct {
			UID         types.UID          `json:"uid"`
			Annotations map[string]*string `json:"annotations"` // null removes one
		} `json:"metadata"`
	}
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	obj := s.find(path)
	pod, isPod := obj.(*corev1.Pod)
	switch {
	case obj == nil:
		notFound(w, path)
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
	for key, value := range patch.Metadata.Annotations {
		if value == nil {
			delete(patched.Annotations, key)
			continue
		}
		metav1.SetMetaDataAnnotation(&patched.ObjectMeta, key, *value)
	}
	s.SetPod(patched)
	s.get(w, r, path)
}

// Kubeconfig returns a kubeconfig with the server's CA and its present token.
func (s *APIServer) Kubeconfig() []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: plugintest
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: plugintest
  user:
    token: %q
contexts:
- name: plugintest
  context: {cluster: plugintest, user: plugintest}
current-context: plugintest
`, s.URL(), base64.StdEncoding.EncodeToString(s.caPEM), s.Token())
}

// WriteKubeconfig writes [APIServer.Kubeconfig] to dir/kubeconfig with mode 0600 and returns that path.
func (s *APIServer) WriteKubeconfig(dir string) (string, error) {
	path := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(path, s.Kubeconfig(), 0o600); err != nil {
		return "", fmt.Errorf("write kubeconfig of the test API server: %w", err)
	}
	return path, nil
}

// serverCertificate makes a self-signed certificate that is its own CA. Each server has its own, so that a test can have a
// server that a kubeconfig does not trust. It is ECDSA: httptest's RSA certificate costs each ADD a millisecond.
func serverCertificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "plugintest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make certificate: %w", err)
	}
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, caPEM, nil
}
