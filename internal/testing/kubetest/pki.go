package kubetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority signs the certificates of one cluster.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority returns an authority and writes ca.crt, and sa.key for service account tokens, to dir.
func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	if a.cert, err = certutil.NewSelfSignedCACert(certutil.Config{CommonName: "kubetest"}, key); err != nil {
		return nil, err
	}
	tokens, err := keyutil.MakeEllipticPrivateKeyPEM()
	return a, errors.Join(err, a.writeCert("ca.crt", a.cert.Raw), keyutil.WriteKey(a.file("sa.key"), tokens))
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) writeCert(name string, der []byte) error {
	return certutil.WriteCert(a.file(name), pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der}))
}

// issue writes NAME.crt and NAME.key for a user of groups, also good for serving on hosts (addresses and names).
func (a *authority) issue(name, user string, groups []string, hosts ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", user, err)
	}
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	return errors.Join(err, a.writeCert(name+".crt", der), keyutil.WriteKey(a.file(name+".key"), private))
}
