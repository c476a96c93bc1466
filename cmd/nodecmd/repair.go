//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/version"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/repair"
)

// repairer runs the repair controller with the present settings.
type repairer struct {
	program   Program
	log       *slog.Logger
	installed func() error // why new pods would not be captured; nil: they would
	putBack   func() time.Time
	suspects  func() []string
	elsewhere func(dialect string) bool
	since     func() time.Time // the plugin was first in place
	confined  *confinement     // nil: it does not act by itself
	watch     repair.Pods      // of the node, for all of the agent; nil: there is none

	mu         sync.Mutex
	settings   Settings
	restart    context.CancelFunc
	controller controller           // nil before the first one runs
	metrics    *prometheus.Registry // of that controller alone
	failed     string               // why detection, which is all that is set, does not work
}

// change takes new settings, and restarts repair if they concern it.
func (r *repairer) change(s Settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := !reflect.DeepEqual(s.Repair, r.settings.Repair)
	r.settings = s
	if changed {
		r.again()
	}
}

// again restarts the controller, if there is one.
func (r *repairer) again() {
	if r.restart != nil {
		r.restart()
	}
}

// acting returns the present settings with what --repair=auto comes to.
func (r *repairer) acting() Settings {
	s := r.present()
	if r.confined.proven() {
		return s.evicting()
	}
	return s
}

// present returns the present settings.
func (r *repairer) present() Settings {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settings
}

// ready returns why repair does not work, or nil. Detection alone keeps no pod from being captured.
func (r *repairer) ready() error {
	r.mu.Lock()
	c, acts := r.controller, r.settings.Repair.Acts()
	r.mu.Unlock()
	if c == nil || !acts {
		return nil
	}
	return because(codeRepair, c.Ready())
}

// pods returns what is known of the node's pods in the mesh.
func (r *repairer) pods() []repair.PodStatus {
	r.mu.Lock()
	c := r.controller
	r.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Pods()
}

// warnings returns what people should know of the node's pods, and why it may not be all.
func (r *repairer) warnings() (all []string) {
	n := map[string]int{}
	for _, p := range r.pods() {
		n[p.State]++
	}
	for _, f := range []struct{ state, says string }{
		{string(repair.Uncaptured), "in the mesh and bypass it"},
		{repair.StateDrifted, "in the mesh and do not have the rules that they should"},
		{string(repair.CannotTell), "in the mesh, and nothing on the node says whether they have their rules"},
	} {
		if n[f.state] > 0 {
			all = append(all, fmt.Sprintf("%s: %d of the node's pods are %s (%s pods names them)", f.state, n[f.state], f.says, r.program.Name))
		}
	}
	all = append(all, r.otherDialects()...)
	all = append(all, r.confined.warnings()...)
	r.mu.Lock()
	c, failed, only := r.controller, r.failed, !r.settings.Repair.Acts()
	r.mu.Unlock()
	if c != nil && only && failed == "" {
		if err := c.Ready(); err != nil {
			failed = err.Error()
		}
	}
	if failed != "" {
		all = append(all, "detection: "+failed)
	}
	return all
}

// decided hands the bypasses of a plugin's decision to the controller, which may write events.
func (r *repairer) decided(d installer.Decision) {
	r.mu.Lock()
	c := r.controller
	r.mu.Unlock()
	if c == nil || d.Verb != "ADD" || d.Outcome != string(plugin.Redirected) && d.Outcome != string(plugin.Same) {
		return
	}
	b := repair.Bypasses{Namespace: d.Pod.Namespace, Name: d.Pod.Name, UID: d.Pod.UID, AddressFamilies: d.AddressFamilies}
	for _, code := range d.Bypasses {
		if slices.Contains(d.DefaultBypasses, code) {
			continue // nearly every pod has it, so it is no news of one
		}
		b.Codes = append(b.Codes, dialect.BypassCode(code))
	}
	c.ReportBypasses(b)
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
	return r.settings.Repair.Enabled() || r.confined != nil
}

// run runs repair until the context ends. It starts over when the settings change.
func (r *repairer) run(ctx context.Context) error {
	if r.confined != nil {
		_ = r.confined.ask(ctx) // it is noted
		r.confined.changed = func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.again()
		}
		go r.confined.run(ctx)
	}
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
		case err != nil && !again && r.onlyDetects(err):
			select {
			case <-ctx.Done():
			case <-time.After(detectAgain):
			}
			continue
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

// detectAgain is the wait before detection that could not begin is tried again.
const detectAgain = 30 * time.Second

// onlyDetects reports whether detection is all that is set: that it fails must not end the agent.
func (r *repairer) onlyDetects(err error) bool {
	r.mu.Lock()
	only, news := !r.settings.Repair.Acts(), r.failed != err.Error()
	if only {
		r.failed, r.controller = err.Error(), nil
	}
	r.mu.Unlock()
	if only && news {
		r.log.Warn("pods that start without the plugin are not looked for", "error", err)
	}
	return only
}

// open makes a controller with the present settings. restart ends its run.
func (r *repairer) open(restart context.CancelFunc) (c controller, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restart, r.metrics = restart, prometheus.NewRegistry()
	s, h := r.settings, repaircmd.Host{
		Dialects: r.program.Dialects, UserAgent: r.program.Name + "/" + version.String(), Installed: r.installed, PutBack: r.putBack, Suspects: r.suspects, Elsewhere: r.elsewhere, Pods: r.watch, Metrics: r.metrics, Log: r.log,
	}
	if r.confined.proven() {
		s = s.evicting()
		h.Confined, h.Lost = r.confined.confirm, &repair.Lost{Since: r.relied, Neighbours: s.OtherMeshPlugins()}
	}
	c, err = r.program.open(s.Repair, h)
	if err == nil {
		r.controller, r.failed = c, ""
	}
	return c, err
}

// relied returns since when a pod of the node could rely on the plugin. Zero where the runtime need not call it for each pod: with Multus, and
// in a file that somebody has chosen.
func (r *repairer) relied() time.Time {
	if s := r.present(); !s.Chained || s.CNIConfName != "" {
		return time.Time{}
	}
	return r.since()
}

// controller is a *repair.Controller; tests have another.
type controller interface {
	Run(ctx context.Context) error
	Ready() error
	Pods() []repair.PodStatus
	ReportBypasses(repair.Bypasses)
}

func openRepair(s repaircmd.Settings, h repaircmd.Host) (controller, error) { return s.New(h) }
