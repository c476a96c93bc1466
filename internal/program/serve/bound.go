package serve

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Whoever reaches an address can open any number of connections and read as slowly as the kernel allows, so each has deadlines, and there
// is a bound on them. Room for /healthz and /readyz is kept by closing the oldest connection without a request in work when the bound is
// reached, and by the bound on requests for the other paths, whose answers may be long.
const (
	// A request has to arrive, and its answer to be taken, in this time. Long: an answer of 1 MiB through a port-forward, after a look
	// into a pod of ten seconds.
	readTimeout, writeTimeout = 10 * time.Second, 30 * time.Second
	idleTimeout               = 30 * time.Second
	// maxHeader bounds a request's header, in bytes.
	maxHeader = 16 << 10
	// maxConns bounds the connections of an address, maxRequests those requests that are neither for /healthz nor for /readyz.
	maxConns, maxRequests = 64, 16
)

// bound keeps the connections of a server few.
type bound struct {
	mu       sync.Mutex
	conns    []*held // oldest first
	requests chan struct{}
}

// held is an open connection.
type held struct {
	net.Conn
	of   *bound
	busy bool // a request is in work; of.mu guards it
	once sync.Once
}

type heldKey struct{}

// server serves the handler within the bounds.
func server(handler http.Handler) (*http.Server, *bound) {
	b := &bound{requests: make(chan struct{}, maxRequests)}
	return &http.Server{
		Handler: b.limit(handler), ReadHeaderTimeout: readTimeout / 2, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ConnContext:    func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, heldKey{}, c) },
	}, b
}

// listener counts what is accepted.
type listener struct {
	net.Listener
	b *bound
}

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	h := &held{Conn: c, of: l.b}
	l.b.enter(h)
	return h, nil
}

// enter adds a connection. Beyond the bound, the oldest that has no request in work is closed.
func (b *bound) enter(h *held) {
	b.mu.Lock()
	b.conns = append(b.conns, h)
	var oldest *held
	if len(b.conns) > maxConns {
		if i := slices.IndexFunc(b.conns, func(c *held) bool { return !c.busy }); i >= 0 {
			oldest = b.conns[i]
		}
	}
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
}

// Close implements [net.Conn].
func (h *held) Close() error {
	h.once.Do(func() {
		h.of.mu.Lock()
		defer h.of.mu.Unlock()
		h.of.conns = slices.DeleteFunc(h.of.conns, func(c *held) bool { return c == h })
	})
	return h.Conn.Close()
}

func (b *bound) work(r *http.Request, busy bool) {
	if h, ok := r.Context().Value(heldKey{}).(*held); ok {
		b.mu.Lock()
		h.busy = busy
		b.mu.Unlock()
	}
}

// limit answers 503 to a request for which there is no room.
func (b *bound) limit(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != healthPath && r.URL.Path != readyPath {
			select {
			case b.requests <- struct{}{}:
				defer func() { <-b.requests }()
			default:
				w.Header().Set("Retry-After", "1")
				http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
				return
			}
		}
		b.work(r, true)
		defer b.work(r, false)
		handler.ServeHTTP(w, r)
	})
}
