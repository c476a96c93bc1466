// Package serve is the agents' HTTP server: /healthz, /readyz and /metrics, and what is for the loopback interface alone.
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
	dto "github.com/prometheus/client_model/go"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/status"
)

// Options say what to serve, and where.
type Options struct {
	// HealthAddress serves /healthz and /readyz, MetricsAddress these and /metrics. An empty address serves nothing. If
	// both are equal, one server serves all.
	HealthAddress, MetricsAddress string
	// Healthy and Ready return what is wrong. Nil: nothing ever is.
	Healthy, Ready func() error
	// News returns what people should know, of which /readyz says beside "ok" what needs attention. Nil: nothing.
	News func() []status.News
	// Mode is a line of /readyz beside "ok". Empty: none.
	Mode string
	// Local is served below /v1/ to who asks over the loopback interface, at the port of HealthAddress; without one, of
	// MetricsAddress. If that address is not one of the loopback interface, 127.0.0.1 is served in addition. Nil: nothing is.
	Local   http.Handler
	Metrics prometheus.Gatherer
	// OnServe is called with each of these addresses once it is listened on. Nil: nobody is told.
	OnServe func(address string)
	Log     *slog.Logger
}

const healthPath, readyPath = "/healthz", "/readyz"

// Handler serves /healthz and /readyz, and /metrics if asked for.
func (o Options) Handler(metrics bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthPath, answer(o.Healthy, nil, ""))
	mux.HandleFunc("GET "+readyPath, answer(o.Ready, o.News, o.Mode))
	if metrics {
		mux.Handle("GET /metrics", promhttp.HandlerFor(recently(o.Metrics), promhttp.HandlerOpts{}))
	}
	return mux
}

// recently gathers metrics once for all who ask in the same second.
func recently(from prometheus.Gatherer) prometheus.Gatherer {
	type gathered struct {
		families []*dto.MetricFamily
		err      error
	}
	var last recent.Value[gathered]
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		g := last.Get(func() gathered {
			families, err := from.Gather()
			return gathered{families, err}
		})
		return g.families, g.err
	})
}

func answer(wrong func() error, list func() []status.News, mode string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if wrong != nil {
			if err := wrong(); err != nil {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				w.WriteHeader(http.StatusServiceUnavailable)
				for _, line := range visible.Lines(err) {
					visible.To(w).Printf("%s\n", line)
				}
				return
			}
		}
		visible.To(w).Printf("ok\n")
		if mode != "" {
			visible.To(w).Printf("%s\n", mode)
		}
		if list == nil {
			return
		}
		for _, text := range news.Warnings(list()) {
			visible.To(w).Printf("warning: %s\n", text)
		}
	}
}

// OneHandler serves all for one server of the caller's.
func (o Options) OneHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", o.Handler(true))
	if o.Local != nil {
		mux.Handle("GET /v1/", loopbackOnly(o.Local))
	}
	return mux
}

// Start serves until stop. It tries an address that the system refuses again, ten times a second: the agent before this one has it for
// a while yet, or another program, and an agent must do its work without monitoring too. It logs each address that it serves, with the port for ":0".
func Start(o Options) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
	}
	for address, handler := range o.handlers() {
		s, bound := server(handler)
		l, err := net.Listen("tcp", address)
		var refused syscall.Errno
		switch {
		case errors.As(err, &refused):
			o.Log.Warn("cannot serve yet; if it is not for another agent's end: set --metrics-address or --health-address", "address", address, "error", err)
		case err != nil:
			stop()
			return nil, fmt.Errorf("listen on %s (set --metrics-address or --health-address): %w", address, err)
		}
		running.Go(func() {
			if l == nil {
				l = listenLater(ctx, address)
			}
			if l != nil {
				if o.OnServe != nil {
					o.OnServe(address)
				}
				o.serve(ctx, s, listener{l, bound})
			}
		})
	}
	return stop, nil
}

// listenAgain is the wait before a refused address is tried again. An agent that takes another one's place is not ready before it
// has the address.
const listenAgain = 100 * time.Millisecond

// listenLater tries until it succeeds. It returns nil when the context ends.
func listenLater(ctx context.Context, address string) net.Listener {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
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
