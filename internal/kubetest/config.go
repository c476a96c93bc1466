package kubetest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// CAFile is the path of the certificate that the server's is signed by.
func (s *Server) CAFile() string { return s.File("pki/ca.crt") }

// Config is how to reach the server from this process with a bearer token, such
// as [AdminToken]; "" is without. Requests are not slowed down. Of a server in
// another network namespace the connections are made there.
func (s *Server) Config(token string) (*rest.Config, error) {
	ca, err := os.ReadFile(s.CAFile())
	if err != nil {
		return nil, err
	}
	config := &rest.Config{
		Host: s.URL(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: 1000, Burst: 1000,
	}
	if s.o.NetNS != "" {
		config.Dial = s.dial
	}
	return config, nil
}

// Kubeconfig writes a file by which kubectl and other programs reach the server
// with a bearer token. It holds the certificate, and is removed with the test. Of
// a server in another network namespace the programs have to run there.
func (s *Server) Kubeconfig(tb testing.TB, token string) string {
	tb.Helper()
	return s.kubeconfig(tb, &clientcmdapi.AuthInfo{Token: token})
}

// UserKubeconfig is [Server.Kubeconfig] for a user with a certificate, such as
// system:node:node-1 of group system:nodes.
func (s *Server) UserKubeconfig(tb testing.TB, user string, groups ...string) string {
	tb.Helper()
	cert, key := s.Certificate(tb, user, groups)
	auth := &clientcmdapi.AuthInfo{ClientCertificate: cert, ClientKey: key}
	return s.kubeconfig(tb, auth)
}

func (s *Server) kubeconfig(tb testing.TB, auth *clientcmdapi.AuthInfo) string {
	tb.Helper()
	ca, err := os.ReadFile(s.CAFile())
	require.NoError(tb, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL(), CertificateAuthorityData: ca}
	config.AuthInfos["u"] = auth
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	require.NoError(tb, clientcmd.WriteToFile(*config, path))
	return path
}

// Certificate makes a certificate that the server knows its bearer by, as a user
// of groups, and that hosts (addresses and names) may serve with. The files stay
// as long as the server's.
func (s *Server) Certificate(tb testing.TB, user string, groups []string, hosts ...string) (certFile, keyFile string) {
	tb.Helper()
	dir, err := os.MkdirTemp(s.File("pki"), "issued-")
	require.NoError(tb, err)
	name := filepath.Join(filepath.Base(dir), "tls")
	certFile, keyFile, err = s.pki.issue(name, user, groups, hosts)
	require.NoError(tb, err, "certificate of %s", user)
	return certFile, keyFile
}

// Logs is the end of the server's log and of etcd's, for a test that failed.
func (s *Server) Logs() string {
	return fmt.Sprintf("apiserver.log:\n%s\netcd.log:\n%s", s.api.Tail(2000), s.etcd.Tail(1000))
}
