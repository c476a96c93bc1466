//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// repairer runs the repair controller with the present settings.
type repairer struct {
	supervisor[repairing]

	options   Options
	events    func() nodeevents.Recorder // for its events; nil: the API server
	installed func() error               // why new pods would not be captured; nil: they would
	suspects  func() []string
	elsewhere func(dialect string) bool
	since     func() time.Time // the plugin was first in place
	confined  *confinement     // nil: it does not act by itself
	watch     *nodepods.Watch  // of the node, for all of the agent; nil: there is none
	keeper    *keeper.Keeper   // of the same
}

// repairing is a controller with its metrics.
type repairing struct {
	controller
	*prometheus.Registry
}

// controller is a *repair.Controller; tests have another.
type controller interface {
	Run(ctx context.Context) error
	Ready() error
	Pods() []status.Pod
	ReportBypasses(repair.Bypasses)
}

func openRepair(o repair.Options) (controller, error) { return repair.New(o) }

func (o Options) newRepairer() *repairer {
	r := &repairer{options: o, confined: o.confinementOf(o.Config)}
	r.init("repair", o.Config, func(s Config) any {
		return []any{s.Repair, s.AutoEvict, s.Node, s.HostRoot, s.ProcRoot, s.CNICacheDir, s.Effective()}
	}, o.Log)
	return r
}

// now returns the running controller, or nil.
func (r *repairer) now() controller {
	if c, _ := r.state(); c != nil {
		return c.controller
	}
	return nil
}

// acting returns the present settings with what AutoEvict comes to.
func (r *repairer) acting() Config {
	s := r.present()
	if r.confined.proven() {
		return s.evicting()
	}
	return s
}

// pods returns what is known of the node's pods in the mesh.
func (r *repairer) pods() []status.Pod {
	if c := r.now(); c != nil {
		return c.Pods()
	}
	return nil
}

// News gives the reason that repair does not work, the counts of pods with a fault, and the reason that these may not be all. Detection alone keeps no pod from
// being captured.
func (r *repairer) News() (all []status.News) {
	c, failed := r.state()
	acts := r.present().acts()
	if c != nil {
		failed = c.Ready()
	}
	if c != nil && acts {
		all = append(all, news.NotReady(codeRepair, failed)...)
	} else if failed != nil {
		all = append(all, news.New(status.KindFinding, news.Detection, failed.Error()))
	}
	pods := r.pods()
	n := map[status.State]int{}
	for _, p := range pods {
		n[p.State]++
	}
	for _, f := range []struct {
		state status.State
		code  status.Code
		says  string
	}{
		{status.StateFailed, news.Uncaptured, "in the mesh and bypass it"},
		{status.StateDrifted, news.Drifted, "in the mesh and do not have the rules that they should"},
		{status.StateUnknown, news.CannotTell, "in the mesh, and nothing on the node says whether they have their rules"},
	} {
		if n[f.state] > 0 {
			all = append(all, news.New(status.KindPod, f.code, fmt.Sprintf("%d of the node's pods are %s (%s pods names them)", n[f.state], f.says, r.options.name())))
		}
	}
	return slices.Concat(all, r.otherDialects(pods), r.confined.News())
}

// decided hands the bypasses of a plugin's decision to the controller, which may write events.
func (r *repairer) decided(d installer.Decision) {
	c := r.now()
	if c == nil || d.Verb != "CHECK" && (d.Verb != "ADD" || d.Outcome != string(plugin.Redirected) && d.Outcome != string(plugin.Same)) {
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

// enabled reports whether there is anything to do.
func (r *repairer) enabled() bool {
	s := r.present()
	return s.acts() || s.Repair.Detect != nil || r.confined != nil
}

// run runs repair until the context ends. It starts over when the settings change.
func (r *repairer) run(ctx context.Context) error {
	if r.confined != nil {
		if r.confined.watch != nil {
			r.confined.watch(ctx, r.confined.lapse)
		}
		r.confined.ask(ctx) // it is noted
		r.confined.changed = r.restart
		go r.confined.run(ctx)
	}
	for r.enabled() {
		again, err := r.once(ctx, r.begin)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller ended it
		case again && (err == nil || errors.Is(err, context.Canceled)):
			continue
		case err == nil:
			return nil
		case r.present().acts():
			r.log.Error("repair ended", "error", err)
			return err
		}
		// Detection is all that is set: that it fails must not end the agent.
		if r.fail(err) {
			r.log.Warn("pods that start without the plugin are not looked for", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(detectAgain):
		}
	}
	return nil
}

// detectAgain is the wait before detection that could not begin is tried again.
const detectAgain = 30 * time.Second

// begin makes a controller with the present settings, and returns what runs it.
func (r *repairer) begin(context.Context) (c repairing, run func(context.Context) error, err error) {
	s := r.present()
	evicts := r.confined.proven()
	if evicts {
		s = s.evicting()
	}
	o, err := r.options.repairOptions(s)
	if err != nil {
		return c, nil, err
	}
	c.Registry = prometheus.NewRegistry()
	o.Metrics, o.Log, o.Pods, o.Keeper = c.Registry, r.log, r.watch, r.keeper
	o.Installed, o.Suspects, o.Elsewhere = r.installed, r.suspects, r.elsewhere
	if evicts {
		o.Confined = r.confined.confirm
		if o.Detect != nil {
			o.Detect.Lost = &repair.Lost{Since: r.relied, Neighbours: s.OtherMeshPlugins()}
		}
	}
	if r.events != nil {
		o.Events = r.events()
	}
	if c.controller, err = r.options.open(o); err != nil {
		return c, nil, err
	}
	return c, c.Run, nil
}

// repairOptions returns the options of a controller, less what the running agent has.
func (o Options) repairOptions(s Config) (repair.Options, error) {
	all, err := o.permissible(s)
	if err == nil {
		all.API, err = o.repairAPI(s)
	}
	return all, err
}

// permissible is the same without the API server.
func (o Options) permissible(s Config) (repair.Options, error) {
	all, plugin := s.Repair, s.Effective()
	all.Identity = s.Identity
	meshes, err := o.meshes(s)
	if err != nil {
		return all, err
	}
	all.Node, all.HostRoot, all.ProcRoot, all.Inventory = s.Node, s.HostRoot, s.ProcRoot, o.inventory(s)
	all.Meshes = meshes
	if all.Backend, err = ruleset.ParseBackend(string(plugin.Backend)); err != nil {
		return all, err
	}
	all.Criteria = maps.Clone(all.Criteria)
	for name, c := range all.Criteria {
		if d := meshes.Lookup(name); d != nil {
			c.Policy = &d.Policy
			all.Criteria[name] = c
		} else {
			delete(all.Criteria, name)
		}
	}
	if all.Detect != nil {
		found := *all.Detect
		found.CacheDir, found.AgentNamespace = s.CNICacheDir, plugin.PodNamespace
		if plugin.Type != "" {
			found.Types = []string{plugin.Type}
		}
		all.Detect = &found
	}
	return all, nil
}

// relied returns since when a pod of the node could rely on the plugin. Zero where the runtime need not call it for each pod: with Multus, and
// in a file that somebody has chosen.
func (r *repairer) relied() time.Time {
	if s := r.present(); !s.Chained || s.CNIConfName != "" || r.since == nil {
		return time.Time{}
	}
	return r.since()
}
