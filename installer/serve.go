//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves /healthz, /readyz and /metrics.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	a.handleHealth(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.reg, promhttp.HandlerOpts{}))
	return mux
}

// stuckAfter is when the loop counts as stuck: it turns every few seconds, and only a hanging file system keeps it longer.
const stuckAfter = time.Minute

func (a *Agent) handleHealth(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		since := a.now().Sub(a.lastLoop)
		a.mu.Unlock()
		if since > stuckAfter {
			http.Error(w, fmt.Sprintf("the loop has been stuck for %s", since.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.readiness(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// serve listens on the addresses of the options. stop ends it.
func (a *Agent) serve() (stop func(), err error) {
	health, both := http.NewServeMux(), a.Handler()
	a.handleHealth(health)
	handlers := map[string]http.Handler{a.opts.HealthAddress: health, a.opts.MetricsAddress: both}
	delete(handlers, "")
	var servers []*http.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, s := range servers {
			_ = s.Shutdown(ctx)
			_ = s.Close()
		}
	}
	for address, handler := range handlers {
		l, err := net.Listen("tcp", address)
		if err != nil {
			stop()
			return nil, fmt.Errorf("listening on %s (set --metrics-address or --health-address): %w", address, err)
		}
		a.mu.Lock()
		for what, wanted := range map[string]string{"health": a.opts.HealthAddress, "metrics": a.opts.MetricsAddress} {
			if wanted == address {
				a.listening[what] = l.Addr().String()
			}
		}
		a.mu.Unlock()
		s := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		servers = append(servers, s)
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				a.log.Error("serving ended", "address", address, "error", err)
			}
		}()
	}
	return stop, nil
}

// Addresses are where "health" and "metrics" are served once Run has begun, with the port that a ":0" got.
func (a *Agent) Addresses() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]string{}
	for k, v := range a.listening {
		out[k] = v
	}
	return out
}
