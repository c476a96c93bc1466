// Package inpod reaches the API server from a pod: by the pod's service account, or by a kubeconfig in it.
package inpod

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/meshcni/meshcni/internal/api/apianswer"
)

// Token is the file with the token of a service account.
func Token(serviceAccountDir string) string { return filepath.Join(serviceAccountDir, "token") }

// transports has one for each service account and server, so that the parts of a program share a connection.
var transports sync.Map

// Config returns the client configuration of a service account, whose directory has the files token and ca.crt. Both are read again
// when they change; see [Reread].
func Config(protocol, host, port, serviceAccountDir string) *rest.Config {
	c := rest.Config{
		Host:            protocol + "://" + net.JoinHostPort(strings.Trim(host, "[]"), port),
		BearerTokenFile: Token(serviceAccountDir),
	}
	if protocol == "https" {
		c.CAFile = filepath.Join(serviceAccountDir, "ca.crt")
	}
	made, _ := transports.LoadOrStore(c.Host+"\n"+c.CAFile, Reread(func() (*rest.Config, error) {
		trust := rest.Config{Host: c.Host, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CAFile}}
		return &trust, nil
	}))
	return &rest.Config{Host: c.Host, BearerTokenFile: c.BearerTokenFile, Transport: made.(http.RoundTripper)} //nolint:errcheck,forcetypeassert // nothing else is stored
}

// Reread returns a transport that has the configuration's trust anchors and credentials as they are now. When they change, connections
// that were made by the old ones are closed, since a server of an old authority may be at their other end. No request goes through a
// proxy, unless the configuration names one: what the environment says is for other addresses than a cluster's.
func Reread(config func() (*rest.Config, error)) http.RoundTripper { return &rereading{config: config} }

// rereadEvery: the files are read again once their last reading is so old, while there are connections.
const rereadEvery = 2 * time.Second

type rereading struct {
	config func() (*rest.Config, error)

	mu    sync.Mutex
	read  *rest.Config // with the contents of its files; nil: not yet
	err   error        // why they cannot be read now
	at    time.Time    // when they were
	now   *trust       // made of read
	timer *time.Timer  // runs while there are connections
}

// trust is a transport, and the connections that it has.
type trust struct {
	http.RoundTripper
	plain *http.Transport
	open  map[*held]struct{}
}

// RoundTrip implements [http.RoundTripper].
func (t *rereading) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	if t.err != nil || time.Since(t.at) >= rereadEvery {
		t.reread()
	}
	now, err := t.now, t.err
	t.mu.Unlock()
	if err == nil {
		return now.RoundTrip(r)
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, fmt.Errorf("read what the API server is known by: %w", err)
}

// CloseIdleConnections implements the interface that [http.Client.CloseIdleConnections] looks for.
func (t *rereading) CloseIdleConnections() {
	t.mu.Lock()
	now := t.now
	t.mu.Unlock()
	if now != nil {
		now.plain.CloseIdleConnections()
	}
}

// reread needs the lock.
func (t *rereading) reread() {
	read, err := t.config()
	if err == nil {
		err = rest.LoadTLSFiles(read)
	}
	var proxy func(*http.Request) (*url.URL, error)
	if err == nil {
		proxy, read.Proxy = read.Proxy, nil                   // functions cannot be compared
		read.CAFile, read.CertFile, read.KeyFile = "", "", "" // their contents are there
	}
	if err == nil && !reflect.DeepEqual(read, t.read) {
		var now *trust
		if now, err = t.trust(read, proxy); err == nil {
			t.replace(now)
			t.read = read
		}
	}
	t.err, t.at = err, time.Now()
}

func (t *rereading) trust(read *rest.Config, proxy func(*http.Request) (*url.URL, error)) (*trust, error) {
	settings, err := read.TransportConfig()
	if err != nil {
		return nil, err
	}
	secure, err := transport.TLSConfigFor(settings)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		proxy = apianswer.Direct
	}
	now := &trust{open: map[*held]struct{}{}}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	// The times and the number are client-go's.
	now.plain = utilnet.SetTransportDefaults(&http.Transport{
		Proxy: proxy, TLSHandshakeTimeout: 10 * time.Second, TLSClientConfig: secure, MaxIdleConnsPerHost: 25,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return t.hold(now, conn)
		},
	})
	now.RoundTripper, err = transport.HTTPWrappersForConfig(settings, apianswer.Checked(now.plain, proxy, "the kubeconfig's proxy-url"))
	return now, err
}

// replace needs the lock.
func (t *rereading) replace(now *trust) {
	old := t.now
	t.now = now
	if old == nil {
		return
	}
	for conn := range old.open {
		_ = conn.Conn.Close()
	}
	old.plain.CloseIdleConnections()
}

// held is a connection that is closed when what it was made by is no longer so.
type held struct {
	net.Conn
	closed func()
}

// Close implements [net.Conn].
func (h *held) Close() error {
	h.closed()
	return h.Conn.Close()
}

func (t *rereading) hold(by *trust, conn net.Conn) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if by != t.now {
		_ = conn.Close()
		return nil, fmt.Errorf("connect to %s: what the API server is known by has just changed", conn.RemoteAddr())
	}
	h := &held{Conn: conn}
	h.closed = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(by.open, h)
	}
	by.open[h] = struct{}{}
	t.look()
	return h, nil
}

// look reads again after a while if there are connections. It needs the lock.
func (t *rereading) look() {
	if t.timer != nil || len(t.now.open) == 0 {
		return
	}
	t.timer = time.AfterFunc(rereadEvery, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timer = nil
		t.reread()
		t.look()
	})
}
