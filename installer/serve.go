//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
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

// serve listens on the addresses of the options. stop ends it. An address that another process has is no reason not to
// capture pods: it is tried again until it is free.
func (a *Agent) serve() (stop func(), err error) {
	health, both := http.NewServeMux(), a.Handler()
	a.handleHealth(health)
	handlers := map[string]http.Handler{a.opts.HealthAddress: health, a.opts.MetricsAddress: both}
	delete(handlers, "")
	servers := map[string]*http.Server{}
	var waiting sync.WaitGroup
	retry, enough := context.WithCancel(context.Background())
	stop = func() {
		enough()
		waiting.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, s := range servers {
			_ = s.Shutdown(ctx)
			_ = s.Close()
		}
	}
	for address, handler := range handlers {
		s := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		servers[address] = s
		l, err := net.Listen("tcp", address)
		switch {
		case err == nil:
			a.serveOn(l, address, s)
		case errors.Is(err, syscall.EADDRINUSE):
			a.log.Error("cannot serve yet (set --metrics-address or --health-address)", "address", address, "error", err)
			waiting.Go(func() {
				if l := listenLater(retry, address); l != nil {
					a.serveOn(l, address, s)
				}
			})
		default:
			stop()
			return nil, fmt.Errorf("listening on %s (set --metrics-address or --health-address): %w", address, err)
		}
	}
	return stop, nil
}

// listenLater tries until it succeeds or the context ends.
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

func (a *Agent) serveOn(l net.Listener, address string, s *http.Server) {
	a.mu.Lock()
	for what, wanted := range map[string]string{"health": a.opts.HealthAddress, "metrics": a.opts.MetricsAddress} {
		if wanted == address {
			a.listening[what] = l.Addr().String()
		}
	}
	a.mu.Unlock()
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("serving ended", "address", address, "error", err)
		}
	}()
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
