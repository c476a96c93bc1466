//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/redirect"
)

// repairer keeps the repair of pods running with the settings that hold now.
type repairer struct {
	run     func(context.Context, RepairOptions) error
	log     *slog.Logger
	changed chan Settings // holds the newest only

	mu  sync.Mutex
	now func() error // says why repair does not work, if so; nil: it has not said yet how to ask
}

// repairSettings are what of the settings that may change is a matter of repair.
type repairSettings struct {
	dialect, backend, server, serviceAccountDir string
	uncapturedFamily                            redirect.UncapturedFamily
	refuseProxyUID                              bool
}

func (s Settings) forRepair() repairSettings {
	return repairSettings{s.Dialect, s.Backend, s.Server(), s.ServiceAccountDir, s.UncapturedFamily, s.RefuseProxyUID}
}

// change tells of settings that were read again.
func (r *repairer) change(s Settings) {
	select {
	case <-r.changed:
	default:
	}
	r.changed <- s
}

// ready says why repair does not work, if so.
func (r *repairer) ready() error {
	r.mu.Lock()
	now := r.now
	r.mu.Unlock()
	if now == nil {
		return nil
	}
	return now()
}

func (r *repairer) setReady(ready func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = ready
}

// keep runs repair until the context ends, and anew when settings that it knows have changed.
func (r *repairer) keep(ctx context.Context, s Settings, reg prometheus.Registerer, installed func() error) error {
	for {
		registered := &registrations{Registerer: reg}
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			ended <- r.run(running, RepairOptions{
				Settings: s, Log: r.log, Registry: registered, InstallerReady: installed, AddReadiness: r.setReady,
			})
		}()
		next, err, again := r.wait(ctx, s, ended)
		stop()
		if again {
			err = <-ended
			r.setReady(nil)
			r.log.Info("repair starts anew with the changed configuration")
		}
		registered.undo()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end was asked for
		case !again:
			return err
		case err != nil && !errors.Is(err, context.Canceled):
			return err
		}
		s = next
	}
}

// wait waits for the end of repair, or for settings that make it start again.
func (r *repairer) wait(ctx context.Context, s Settings, ended <-chan error) (next Settings, err error, again bool) {
	for {
		select {
		case err := <-ended:
			return s, err, false
		case <-ctx.Done():
			return s, <-ended, false
		case next := <-r.changed:
			if next.forRepair() != s.forRepair() || !slices.Equal(next.ExcludeNamespaces, s.ExcludeNamespaces) {
				return next, nil, true
			}
		}
	}
}

// registrations remembers what is registered through it, so that it can be taken out again.
type registrations struct {
	prometheus.Registerer
	mu  sync.Mutex
	all []prometheus.Collector
}

func (r *registrations) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(c)
	if err == nil {
		r.mu.Lock()
		r.all = append(r.all, c)
		r.mu.Unlock()
	}
	return err
}

func (r *registrations) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *registrations) undo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		r.Unregister(c)
	}
	r.all = nil
}
