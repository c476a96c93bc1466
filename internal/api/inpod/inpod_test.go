package inpod_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/api/inpod"
	"github.com/meshcni/meshcni/internal/testing/waittest"
)

// TestMain gives all tests proxies that are not there. net/http reads its environment once.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		if err := os.Setenv(name, "http://127.0.0.1:1"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// authority makes a certificate for 0.0.0.0 that is its own authority.
func authority(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4zero},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// server is an API server that can change its certificate.
type server struct {
	*httptest.Server
	cert  atomic.Pointer[tls.Certificate]
	ended atomic.Int32 // streams whose client went away
	token atomic.Value
}

// newServer's address is one to which net/http would use a proxy.
func newServer(t *testing.T, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.token.Store(r.Header.Get("Authorization"))
		if r.URL.Query().Has("watch") {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			s.ended.Add(1)
			return
		}
		answer(w, r)
	}))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*s.cert.Load()}, NextProtos: []string{"h2"}}, nil
	}}
	s.Config.ErrorLog = nil
	first, _ := authority(t)
	s.cert.Store(&first)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *server) config(t *testing.T, dir string) *rest.Config {
	t.Helper()
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	return inpod.Config("https", "0.0.0.0", u.Port(), dir)
}

func client(t *testing.T, config *rest.Config) *rest.RESTClient {
	t.Helper()
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(config)
	require.NoError(t, err)
	return c
}

func get(c *rest.RESTClient) error {
	return c.Get().Resource("pods").Name("a").Namespace("b").Do(context.Background()).Into(&corev1.Pod{})
}

func pod(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"b","name":"a"}}`)
}

// replaceFile is what the kubelet does with a rotated file.
func replaceFile(t *testing.T, path string, text []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", text, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// TestRotatedAuthority: a client that stays hears of a new authority, ends what it has open by the old one, and believes that no more. No
// proxy of the environment is asked.
func TestRotatedAuthority(t *testing.T) {
	s := newServer(t, pod)
	oldCert, oldCA := authority(t)
	newCert, newCA := authority(t)
	s.cert.Store(&oldCert)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	replaceFile(t, inpod.Token(dir), []byte("t"))
	c := client(t, s.config(t, dir))
	require.ErrorContains(t, get(c), "read what the API server is known by: ", "the file is not there")
	replaceFile(t, ca, oldCA)
	require.NoError(t, get(c))
	assert.Equal(t, "Bearer t", s.token.Load())

	watch, err := c.Get().Resource("pods").Param("watch", "1").Stream(t.Context())
	require.NoError(t, err)
	defer func() { _ = watch.Close() }()
	replaceFile(t, ca, newCA)
	_, err = io.ReadAll(watch)
	require.Error(t, err, "the connection that the old authority vouched for is closed, without anybody asking")
	waittest.Eventually(t, "the server sees it end", func() error {
		if n := s.ended.Load(); n != 1 {
			return fmt.Errorf("%d ended", n)
		}
		return nil
	})
	require.ErrorContains(t, get(c), "certificate", "a server of the old authority is not believed")

	s.cert.Store(&newCert)
	require.NoError(t, get(c), "one of the new is")
	replaceFile(t, ca, []byte("garbage"))
	waittest.Eventually(t, "a file without a certificate vouches for nobody", func() error {
		if err := get(c); err == nil || !strings.Contains(err.Error(), "read what the API server is known by: ") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
}

// TestTheirAnswers: what is no API server's is told from it, and what is one's is left alone.
func TestTheirAnswers(t *testing.T) {
	answer := http.HandlerFunc(nil)
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
	cert, ca := authority(t)
	s.cert.Store(&cert)
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "ca.crt"), ca)
	replaceFile(t, inpod.Token(dir), []byte("t"))
	c := client(t, s.config(t, dir))
	says := func(code int, kind, text string, headers ...string) error {
		answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			for _, name := range headers {
				w.Header().Set(name, "1")
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
		return c.Get().Resource("pods").Name("a").Namespace("b").MaxRetries(0).Do(context.Background()).Into(&corev1.Pod{})
	}
	for _, code := range []int{200, 401, 403, 404, 407, 502} {
		err := says(code, "text/html", "<h1>Access Denied</h1>")
		require.ErrorContains(t, err, "no API server's answer, but ")
		require.ErrorContains(t, err, http.StatusText(code)+" from ")
		require.ErrorContains(t, err, `"Access Denied"`)
		assert.False(t, apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err))
	}
	require.ErrorContains(t, says(403, "", ""), "nothing else")
	assert.True(t, apierrors.IsForbidden(says(403, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)))
	assert.True(t, apierrors.IsNotFound(says(404, "text/plain", "404 page not found\n")), "of a group that a server does not know")
	assert.True(t, apierrors.IsTooManyRequests(says(429, "text/plain", "Too many requests, please try again later.", "Retry-After")))
}
