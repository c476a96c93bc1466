package repaircmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// serve serves /healthz, /readyz and /metrics on the addresses of the settings,
// both on one if they are equal. stop ends it.
func serve(s *settings, registry *prometheus.Registry, ready func() error, log *slog.Logger) (stop func(), err error) {
	muxes := map[string]*http.ServeMux{}
	mux := func(address string) *http.ServeMux {
		if muxes[address] == nil {
			muxes[address] = http.NewServeMux()
		}
		return muxes[address]
	}
	mux(s.metricsAddress).Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux(s.healthAddress).HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux(s.healthAddress).HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	delete(muxes, "")
	var servers []*http.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, server := range servers {
			_ = server.Shutdown(ctx)
			_ = server.Close()
		}
	}
	for address, handler := range muxes {
		l, err := net.Listen("tcp", address)
		if err != nil {
			stop()
			return nil, fmt.Errorf("listen on %s (--metrics-address, --health-address): %w", address, err)
		}
		log.Info("serving", "address", l.Addr().String(), "health", address == s.healthAddress, "metrics", address == s.metricsAddress)
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		servers = append(servers, server)
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				log.Error("serving ended", "address", address, "error", err.Error())
			}
		}()
	}
	return stop, nil
}
