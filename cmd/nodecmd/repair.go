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

// repairer runs the repair controller with the present settings.
type repairer struct {
	program   Program
	log       *slog.Logger
	installed func() error // why new pods would not be captured; nil: they would
	suspects  func() []string

	mu         sync.Mutex
	settings   Settings
	restart    context.CancelFunc
	controller controller           // nil before the first one runs
	metrics    *prometheus.Registry // of that controller alone
}

// change takes new settings, and restarts repair if they concern it.
func (r *repairer) change(s Settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := !reflect.DeepEqual(s.Repair, r.settings.Repair)
	r.settings = s
	if changed && r.restart != nil {
		r.restart()
	}
}

// ready returns why repair does not work, or nil.
func (r *repairer) ready() error {
	r.mu.Lock()
	c := r.controller
	r.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Ready()
}

// Describe implements [prometheus.Collector]. The metrics change with the controller.
func (r *repairer) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector] with the running controller's metrics.
func (r *repairer) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	metrics := r.metrics
	r.mu.Unlock()
	if metrics != nil {
		metrics.Collect(ch)
	}
}

func (r *repairer) enabled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settings.Repair.Enabled()
}

// run runs repair until the context ends. It starts over when the settings change.
func (r *repairer) run(ctx context.Context) error {
	for r.enabled() {
		running, cancel := context.WithCancel(ctx)
		c, err := r.open(cancel)
		if err == nil {
			err = c.Run(running)
		}
		again := running.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller ended it
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

// open makes a controller with the present settings. restart ends its run.
func (r *repairer) open(restart context.CancelFunc) (c controller, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restart, r.metrics = restart, prometheus.NewRegistry()
	c, err = r.program.open(r.settings.Repair, repaircmd.Host{
		Dialects: r.program.Dialects, UserAgent: r.program.Name + "/" + version.String(), Installed: r.installed, Suspects: r.suspects, Metrics: r.metrics, Log: r.log,
	})
	if err == nil {
		r.controller = c
	}
	return c, err
}

// controller is a *repair.Controller; tests have another.
type controller interface {
	Run(ctx context.Context) error
	Ready() error
}

func openRepair(s repaircmd.Settings, h repaircmd.Host) (controller, error) { return s.New(h) }
