package kubepod

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/internal/version"
)

// maxBody is the most that is read of one answer, in bytes. An object in etcd has at most 1.5 MiB (its --max-request-bytes
// default), which JSON can double.
const maxBody = 8 << 20

// load follows clientcmd's rules for one explicit file, without the fall-backs (KUBECONFIG, ~/.kube, in-cluster): a plugin
// runs in the runtime's environment, not in a user's or a pod's.
func load(kubeconfigPath string) (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(kubeconfigPath)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*file, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	if config.ExecProvider != nil || config.AuthProvider != nil {
		return nil, errHelper
	}
	config.UserAgent = "meshcni/" + version.String()
	return config, nil
}

// transportFor avoids client-go's transport cache, which is global, never evicted, and starts goroutines that watch
// certificate files. HTTP/1.1 suits one small GET: HTTP/2 adds a settings exchange.
func transportFor(config *rest.Config) (*http.Transport, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		tlsConfig.NextProtos = []string{"http/1.1"}
	}
	proxy := http.ProxyFromEnvironment
	if config.Proxy != nil {
		proxy = config.Proxy
	}
	return &http.Transport{
		Proxy: proxy,
		// The times are net/http's defaults, for a ctx without a deadline.
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig:     tlsConfig,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		// The server compresses only answers above 128 KiB, and a compressed one could grow past maxBody.
		DisableCompression: true,
		MaxIdleConns:       2,
		IdleConnTimeout:    90 * time.Second,
	}, nil
}

// limited is a round tripper whose bodies end with a *http.MaxBytesError after maxBody bytes.
type limited struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err == nil && resp.Body != nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxBody)
	}
	return resp, err
}
