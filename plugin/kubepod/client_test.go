package kubepod_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

const podPath = "GET /api/v1/namespaces/default/pods/web-0"

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-0", UID: "7d1e4c4a-0000-4000-8000-000000000001",
			Annotations: map[string]string{"sidecar.istio.io/status": `{"version":"1"}`},
		},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "app", Image: "app:1"}},
			InitContainers: []corev1.Container{{Name: "istio-proxy", Args: []string{"proxy", "sidecar"}}},
		},
	}
}

func open(t testing.TB, server *apiservertest.APIServer) plugin.Pods {
	t.Helper()
	path, err := server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	client, err := kubepod.Open(path)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func TestPodIsOneGETInProtobuf(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(testPod())
	var header http.Header
	server.Handle(func(_ int, _ http.ResponseWriter, r *http.Request) bool { header = r.Header.Clone(); return false })

	got, err := open(t, server).Pod(t.Context(), "default", "web-0")
	require.NoError(t, err)
	assert.Equal(t, testPod(), got)
	assert.Equal(t, []string{podPath}, server.Requests())
	assert.Equal(t, "application/vnd.kubernetes.protobuf,application/json", header.Get("Accept"))
	assert.True(t, strings.HasPrefix(header.Get("User-Agent"), filepath.Base(os.Args[0])+"/"), header.Get("User-Agent"))
	assert.Empty(t, header.Get("Accept-Encoding"))
}

func TestPodFromAServerThatSpeaksOnlyJSON(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(testPod())
	server.Handle(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		r.Header.Set("Accept", "application/json")
		return false
	})
	got, err := open(t, server).Pod(t.Context(), "default", "web-0")
	require.NoError(t, err)
	assert.Equal(t, testPod(), got)
}

func TestNamespace(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod", Labels: map[string]string{"mesh": "on"}}})
	client := open(t, server)
	got, err := client.Namespace(t.Context(), "prod")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"mesh": "on"}, got.Labels)
	_, err = client.Namespace(t.Context(), "other")
	assert.True(t, apierrors.IsNotFound(err), err)
	assert.Equal(t, []string{"GET /api/v1/namespaces/prod", "GET /api/v1/namespaces/other"}, server.Requests())
}

func isResponseError(err error) bool {
	return errors.Is(err, kubepod.ErrResponse)
}

// Each failure is told apart by the line that the package documentation gives, costs one request, and is
// transient or not.
func TestFailures(t *testing.T) {
	cases := map[string]struct {
		hook      apiservertest.Hook
		is        func(error) bool
		transient bool
	}{
		"not found":        {apiservertest.Answer(404), apierrors.IsNotFound, true},
		"forbidden":        {apiservertest.Answer(403), apierrors.IsForbidden, true},
		"unauthorized":     {apiservertest.Answer(401), apierrors.IsUnauthorized, true},
		"too many":         {apiservertest.Answer(429), func(err error) bool { d, ok := apierrors.SuggestsClientDelay(err); return ok && d == 1 }, true},
		"internal":         {apiservertest.Answer(500), apierrors.IsInternalError, true},
		"bad gateway":      {apiservertest.Answer(502), nil, true},
		"unavailable":      {apiservertest.Answer(503), apierrors.IsServiceUnavailable, true},
		"bad request":      {apiservertest.Answer(400), apierrors.IsBadRequest, false},
		"gone":             {apiservertest.Answer(410), apierrors.IsGone, false},
		"hang up":          {apiservertest.HangUp(), nil, true},
		"truncated":        {apiservertest.Truncate(), nil, true},
		"garbage protobuf": {apiservertest.Body("application/vnd.kubernetes.protobuf", []byte("k8s\x00\xff\xff\xff\xff")), isResponseError, true},
		"garbage json":     {apiservertest.Body("application/json", []byte(`{"kind":"Pod",`)), isResponseError, true},
		"wrong types":      {apiservertest.Body("application/json", []byte(`{"kind":"Pod","apiVersion":"v1","spec":7}`)), isResponseError, true},
		"login page":       {apiservertest.Body("text/html", []byte("<html>Sign in</html>")), isResponseError, true},
		"empty":            {apiservertest.Body("application/json", nil), isResponseError, true},
		"empty object":     {apiservertest.Body("application/json", []byte(`{}`)), isResponseError, true},
		"unknown kind":     {apiservertest.Body("application/json", []byte(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"web-0"}}`)), isResponseError, true},
		"another kind":     {apiservertest.Body("application/json", []byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"web-0"}}`)), isResponseError, true},
		"a status":         {apiservertest.Body("application/json", []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)), apierrors.IsNotFound, true},
		"another pod":      {apiservertest.Body("application/json", []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"default","name":"web-1"}}`)), isResponseError, true},
		"endless": {func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			chunk := []byte(strings.Repeat(" ", 1<<20))
			for range 64 { // ends when the client hangs up
				if _, err := w.Write(chunk); err != nil {
					break
				}
			}
			return true
		}, func(err error) bool { var m *http.MaxBytesError; return errors.As(err, &m) }, true},
		"redirect": {func(_ int, w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return true
		}, func(err error) bool { var s apierrors.APIStatus; return errors.As(err, &s) && s.Status().Code == 302 }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := apiservertest.NewAPIServer(t)
			server.SetPod(testPod())
			server.Handle(c.hook)
			pod, err := open(t, server).Pod(t.Context(), "default", "web-0")
			require.Error(t, err)
			assert.Nil(t, pod)
			assert.ErrorContains(t, err, "get pod default/web-0: ")
			if c.is != nil {
				assert.True(t, c.is(err), "%#v: %v", err, err)
			}
			assert.Equal(t, c.transient, kubepod.Transient(err), err)
			assert.Equal(t, []string{podPath}, server.Requests(), "exactly one request")
		})
	}
}

func TestServerGone(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	client := open(t, server)
	server.Close()
	_, err := client.Pod(t.Context(), "default", "web-0")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.True(t, kubepod.Transient(err))
}

func TestUnknownCertificateAuthority(t *testing.T) {
	server, stranger := apiservertest.NewAPIServer(t), apiservertest.NewAPIServer(t)
	config := strings.ReplaceAll(string(stranger.Kubeconfig()), stranger.URL(), server.URL())
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	client, err := kubepod.Open(path)
	require.NoError(t, err)
	_, err = client.Pod(t.Context(), "default", "web-0")
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown)
	assert.True(t, kubepod.Transient(err))
	assert.Empty(t, server.Requests())
}

func TestContextEndsARequestThatHangs(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	server.Handle(func(n int, w http.ResponseWriter, r *http.Request) bool {
		cancel()
		return apiservertest.Hang()(n, w, r)
	})
	_, err := open(t, server).Pod(ctx, "default", "web-0")
	require.ErrorIs(t, err, context.Canceled)
	assert.False(t, kubepod.Transient(err))

	expired, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = open(t, server).Pod(expired, "default", "web-0")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.True(t, kubepod.Transient(err))
	assert.Len(t, server.Requests(), 1, "an expired context makes no request")
}

// A server that accepts and never speaks TLS holds the client in the handshake, where ctx has to reach it too.
func TestContextEndsAHandshakeThatHangs(t *testing.T) {
	silent, accepted := silentListener(t)
	path := writeConfig(t, "server: https://"+silent, "token: t")
	client, err := kubepod.Open(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-accepted; cancel() }()
	_, err = client.Pod(ctx, "default", "web-0")
	require.ErrorIs(t, err, context.Canceled)
}

func TestNewTokenNeedsNewOpen(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	server.SetPod(testPod())
	dir := t.TempDir()
	path, err := server.WriteKubeconfig(dir)
	require.NoError(t, err)
	server.SetToken("rotated")
	client, err := kubepod.Open(path)
	require.NoError(t, err)
	_, err = client.Pod(t.Context(), "default", "web-0")
	require.True(t, apierrors.IsUnauthorized(err), err)
	_, err = server.WriteKubeconfig(dir)
	require.NoError(t, err)
	client, err = kubepod.Open(path)
	require.NoError(t, err)
	_, err = client.Pod(t.Context(), "default", "web-0")
	require.NoError(t, err)
}

func TestNames(t *testing.T) {
	server := apiservertest.NewAPIServer(t)
	client := open(t, server)
	for _, c := range [][2]string{{"", "web"}, {"default", ""}, {"default", ".."}, {"..", "web"}, {"a/b", "web"}, {"default", "a/../../../secrets/x"}, {"a", "b%2fc"}} {
		_, err := client.Pod(t.Context(), c[0], c[1])
		require.ErrorIs(t, err, kubepod.ErrInvalidName, c)
		assert.False(t, kubepod.Transient(err))
	}
	_, err := client.Namespace(t.Context(), "")
	require.ErrorIs(t, err, kubepod.ErrInvalidName)
	assert.Empty(t, server.Requests())
}

func TestTransientOfNothingAndOfConfig(t *testing.T) {
	assert.False(t, kubepod.Transient(nil))
	_, err := kubepod.Open(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.False(t, kubepod.Transient(err))
}
