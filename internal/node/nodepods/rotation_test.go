package nodepods_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/api/inpod"
	nodeapi "github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// ownAuthority makes a certificate for 127.0.0.1 that is its own authority.
func ownAuthority(t *testing.T) (*tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestRotatedAuthorityOfTheCluster: the agent's watch of a real API server, whose certificate has another authority all at once, goes on
// by the new one without a restart, and believes a server of the old one no more, though a connection to it was open.
func TestRotatedAuthorityOfTheCluster(t *testing.T) {
	netnstest.Require(t, kubetest.Servers)
	s := kubetest.Own(t, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}})
	admin := s.Admin(t)
	namespace := admin.Namespace(t)
	create := func(name string) {
		t.Helper()
		admin.Create(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.PodSpec{NodeName: "rotated", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		})
	}
	config, err := s.Config("")
	require.NoError(t, err)
	behind, err := url.Parse(s.URL())
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.FlushInterval = -1
	proxy.Transport, err = rest.TransportFor(config)
	require.NoError(t, err)
	var cert atomic.Pointer[tls.Certificate]
	server := httptest.NewUnstartedServer(proxy)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*cert.Load()}, NextProtos: []string{"h2"}}, nil
	}}
	oldCert, oldCA := ownAuthority(t)
	newCert, newCA := ownAuthority(t)
	cert.Store(oldCert)
	server.StartTLS()
	defer server.Close()
	defer server.CloseClientConnections()

	dir := t.TempDir()
	write := func(name string, text []byte) { // as the kubelet does
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), text, 0o600))
		require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name)))
	}
	write("ca.crt", oldCA)
	write("token", []byte(kubetest.AdminToken))
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	client, err := nodeapi.New(meshcni.Identity{}, inpod.Config("https", "127.0.0.1", port, dir), "rotated")
	require.NoError(t, err)
	watch, err := nodepods.New(nodepods.Options{API: client})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- watch.Run(ctx) }()
	defer func() { stop(); <-running }() //nolint:errcheck // it returns nil
	knows := func(name string) {
		t.Helper()
		waittest.Eventually(t, "the watch knows of "+name, func() error {
			for _, pod := range watch.Pods() {
				if pod.Name == name {
					return watch.Ready()
				}
			}
			return errors.Join(fmt.Errorf("it knows %d pods", len(watch.Pods())), watch.Ready())
		})
	}
	create("first")
	knows("first")

	write("ca.crt", newCA)
	waittest.Eventually(t, "a server of the old authority is not believed", func() error {
		if err := watch.Outdated(0); err == nil || !strings.Contains(err.Error(), "certificate") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	create("second")
	cert.Store(newCert)
	knows("second")
	require.NoError(t, watch.Outdated(0))
	create("third")
	knows("third")
}
