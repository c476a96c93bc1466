//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/internal/version"
)

// repairer keeps the repair of pods running with the settings that hold now.
type repairer struct {
	program   Program
	log       *slog.Logger
	installed func() error // says why new pods would not be captured, if so

	mu         sync.Mutex
	settings   Settings
	restart    context.CancelFunc
	controller controller           // nil before the first one runs
	metrics    *prometheus.Registry // that controller's own, so that they go with it
}

// change tells of settings that were read again. Those that repair goes by
// start it anew.
func (r *repairer) change(s Settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := !reflect.DeepEqual(s.Repair, r.settings.Repair)
	r.settings = s
	if changed && r.restart != nil {
		r.restart()
	}
}

// ready says why repair does not work, if so.
func (r *repairer) ready() error {
	r.mu.Lock()
	c := r.controller
	r.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Ready()
}

// Describe and Collect show the metrics of the controller that runs now.
func (r *repairer) Describe(chan<- *prometheus.Desc) {}

// Collect is [prometheus.Collector]'s.
func (r *repairer) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	metrics := r.metrics
	r.mu.Unlock()
	if metrics != nil {
		metrics.Collect(ch)
	}
}

// enabled reports whether there is anything for the controller to do.
func (r *repairer) enabled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settings.Repair.Enabled()
}

// run runs repair until the context ends, and anew when its settings change.
func (r *repairer) run(ctx context.Context) error {
	for r.enabled() {
		running, cancel := context.WithCancel(ctx)
		c, stop, err := r.open(cancel)
		if err == nil {
			err = c.Run(running)
			stop()
		}
		again := running.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end was asked for
		case err != nil && !(again && errors.Is(err, context.Canceled)):
			r.log.Error("repair ended", "error", err)
			return err
		case !again:
			return nil
		}
		r.log.Info("repair starts anew with the changed configuration")
	}
	return nil
}

// open makes a controller with the settings of now; restart ends its run.
func (r *repairer) open(restart context.CancelFunc) (c controller, stop func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restart, r.metrics = restart, prometheus.NewRegistry()
	c, stop, err = r.program.open(r.settings.Repair, repaircmd.Host{
		Dialects: r.program.Dialects, UserAgent: r.program.Name + "/" + version.String(), Installed: r.installed, Metrics: r.metrics, Log: r.log,
	})
	if err == nil {
		r.controller = c
	}
	return c, stop, err
}

// controller is a *repair.Controller, or a test's.
type controller interface {
	Run(ctx context.Context) error
	Ready() error
}

func openRepair(s repaircmd.Settings, h repaircmd.Host) (controller, func(), error) { return s.Open(h) }
