package plugintest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

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

// serverCertificate makes a self-signed certificate that is its own CA. It is of the server alone, so that a test can have
// a server which a kubeconfig does not trust. ECDSA, because httptest's RSA certificate would cost each ADD of a benchmark
// a millisecond.
func serverCertificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "plugintest"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:              []string{"localhost"},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make certificate: %w", err)
	}
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, caPEM, nil
}
