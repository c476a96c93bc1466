// Package serve is the agents' HTTP server: /healthz, /readyz and /metrics.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options say what to serve, and where.
type Options struct {
	// HealthAddress serves /healthz and /readyz, MetricsAddress these and /metrics. An empty address serves nothing. If
	// both are equal, one server serves all.
	HealthAddress, MetricsAddress string
	// Healthy and Ready return what is wrong. Nil: nothing ever is.
	Healthy, Ready func() error
	// Warnings returns what /readyz says beside "ok". Nil: nothing.
	Warnings func() []string
	Metrics  prometheus.Gatherer
	Log      *slog.Logger
}

// Handler serves /healthz and /readyz, and /metrics if asked for.
func (o Options) Handler(metrics bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(o.Healthy, nil))
	mux.HandleFunc("GET /readyz", answer(o.Ready, o.Warnings))
	if metrics {
		mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{}))
	}
	return mux
}

func answer(wrong func() error, warnings func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if wrong != nil {
			if err := wrong(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		_, _ = fmt.Fprintln(w, "ok")
		if warnings != nil {
			for _, text := range warnings() {
				_, _ = fmt.Fprintln(w, "warning:", text)
			}
		}
	}
}

// Start serves until stop. It tries an address that is in use again every second, because an agent must also do its
// work without monitoring. It logs each address that it serves, with the port for ":0".
func Start(o Options) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
	}
	addresses := map[string]bool{o.HealthAddress: false, o.MetricsAddress: true}
	delete(addresses, "")
	for address, metrics := range addresses {
		s := &http.Server{Handler: o.Handler(metrics), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		l, err := net.Listen("tcp", address)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			o.Log.Error("cannot serve yet: set --metrics-address or --health-address", "address", address, "error", err)
		case err != nil:
			stop()
			return nil, fmt.Errorf("listen on %s (set --metrics-address or --health-address): %w", address, err)
		}
		running.Go(func() {
			if l == nil {
				l = listenLater(ctx, address)
			}
			if l != nil {
				o.serve(ctx, s, l)
			}
		})
	}
	return stop, nil
}

// listenLater tries until it succeeds. It returns nil when the context ends.
func listenLater(ctx context.Context, address string) net.Listener {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		if l, err := net.Listen("tcp", address); err == nil {
			return l
		}
	}
}

// serve returns when the context has ended and the server is closed.
func (o Options) serve(ctx context.Context, s *http.Server, l net.Listener) {
	o.Log.Info("serving", "address", l.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		o.Log.Error("serving ended", "address", l.Addr().String(), "error", err)
		return
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.Shutdown(ending)
	_ = s.Close()
	<-ended //nolint:errcheck // Shutdown is why it ended
}
