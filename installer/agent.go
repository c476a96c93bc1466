//go:build linux

package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// Options configure an [Agent]. Only Config is required.
type Options struct {
	// Config is the initial configuration.
	Config Config
	// Reload returns the present configuration. It is called when a file in ReloadDirs has changed, and every Poll. On an
	// error, the agent keeps its configuration. Nil: Config never changes.
	Reload func() (Config, error)
	// ReloadDirs are the directories of the files that Reload reads.
	ReloadDirs []string
	// Log is the agent's log. Nil discards it.
	Log *slog.Logger
	// PluginLog receives the plugins' log records, one JSON object a line. Nil discards them.
	PluginLog io.Writer
	// OnDecision is called with each decision that plugins on this node log. It must not wait. Nil: nothing is.
	OnDecision func(Decision)
	// Registry receives the metrics. Nil: there are none.
	Registry prometheus.Registerer
	// Token returns a new token for the plugin, with which it reads pods and namespaces. It is called at the start, before half of
	// a token's lifetime has passed, and when a plugin could not read its pod; each time with 30 s, and again after a failure. The
	// token must be a JWT that says when it was issued and expires. An error that wraps [errors.ErrUnsupported] says that the API
	// server makes no such tokens. Without a valid token the plugin gets the agent's own, the one in ServiceAccountDir. Nil: it
	// always gets that.
	Token func(context.Context) (string, error)
	// UninstallOnExit makes Run uninstall when its context ends. Default: the plugin stays, and captures new pods of the mesh
	// until its token expires. Then they wait; they never bypass the mesh.
	UninstallOnExit bool
	// Leaving is called after the context has ended, if UninstallOnExit is set. It reports whether the agent leaves for good,
	// and how that is known; otherwise the plugin stays. It must return within seconds. Nil: always uninstall.
	Leaving func(context.Context) (leaving bool, why string)
	// TakeOver is called while an older agent keeps the plugin installed, before this one takes its place, and again until it
	// returns nil. Until then, and while [Agent.Ready] would find something wrong with the node, the older one goes on, and Ready
	// says what is waited for. It must not wait. Nil: nothing else is waited for.
	TakeOver func() error
	// TakeBack is called with Config.Alone, and again until it returns nil: until then what an agent has put on the node before stays, and captures
	// pods. It must not wait. Nil: nothing is waited for.
	TakeBack func() error
	// OnTurn is called by the agent's loop when the agent begins to act, and when it no longer does since another agent of the node
	// has taken its place: here then says that the other one is in the same network namespace. It must return at once. Nil: nobody is told.
	OnTurn func(acts, here bool)
	// Hooked reports whether pods that the plugin is not called for are captured all the same, by the container runtime's own hook: then
	// OwnFileAuto takes no list of its own. It must not wait. Nil: they are not.
	Hooked func() bool
	// Poll is the time between looks at the node if no change is announced. Default: 5 s. Without inotify it is at most
	// 500 ms.
	Poll time.Duration
	// Settle is the age from which an invalid file is reported, and a later one chosen. Default: 300 ms. A file is invalid for
	// an instant while its owner writes it in place.
	Settle time.Duration
}

// Agent keeps the plugin installed on a node. Make one with [New]. Its methods are safe for concurrent use.
type Agent struct {
	opts   Options
	log    *slog.Logger
	m      *metrics
	obs    *observer
	sock   *logSocket
	tokens *tokens
	now    func() time.Time

	mu         sync.Mutex
	config     Config
	blocked    []*BlockedError
	neighbours []Neighbour
	binDirs    []BinDir
	target     string
	lastLoop   time.Time
	since      time.Time   // see State.PutBack
	installed  time.Time   // see State.FirstInstalled
	refused    string      // why the configuration that Reload has found is refused; empty: it is not
	ownFile    status.News // that a file of our own is kept since the agent began; zero: it is not, or was before

	// Only the loop uses these.
	conflict   *conflict
	taken      bool // a file of our own is kept by OwnFileAuto
	past       history
	kept       history   // as it is on the disk
	recalled   bool      // past has been read
	rebooted   bool      // since past was written
	weighed    bool      // what is missing has been judged in the light of past
	putAt      time.Time // when it was last put where it had not been
	putBack    bool      // the entry, and past does not say so yet
	boot       func() string
	begun      time.Time
	wrote      []byte          // the target when it last had our entry
	held       map[string]bool // files that have had our entry
	doubt      string          // the choice that Settle delays
	doubtSince time.Time
	failedFor  time.Duration
	rested     bool // what was to be taken back has been
	lease      *lease
	turn       *bool // whether it acts; nil: that has not been decided
}

// New makes an agent. Its errors are those of [Config.Validate].
func New(opts Options) (*Agent, error) {
	if err := opts.Config.Validate(); err != nil {
		return nil, err
	}
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	opts.PluginLog = cmp.Or(opts.PluginLog, io.Discard)
	opts.Registry = cmp.Or[prometheus.Registerer](opts.Registry, prometheus.NewRegistry())
	opts.Poll = cmp.Or(opts.Poll, 5*time.Second)
	opts.Settle = cmp.Or(opts.Settle, 300*time.Millisecond)
	if opts.Hooked == nil {
		opts.Hooked = func() bool { return false }
	}
	if opts.OnTurn == nil {
		opts.OnTurn = func(bool, bool) {}
	}
	if opts.TakeOver == nil {
		opts.TakeOver = func() error { return nil }
	}
	if opts.TakeBack == nil {
		opts.TakeBack = func() error { return nil }
	}
	m := newMetrics(opts.Registry, opts.Config.Identity)
	return &Agent{
		opts: opts, log: opts.Log, m: m, obs: newObserver(), now: time.Now, config: opts.Config,
		tokens:  &tokens{ask: opts.Token, log: opts.Log, failed: m.failures.WithLabelValues("token").Inc, now: time.Now, doubt: make(chan struct{}, 1)},
		blocked: []*BlockedError{{codeStarting, errors.New("the node has not been looked at yet")}},
		boot:    bootID,
		lease:   leaseOf(opts.Config), lastLoop: time.Now(), conflict: newConflict(), held: map[string]bool{},
	}, nil
}

// locked reads a field that the loop replaces as a whole.
func locked[T any](a *Agent, field *T) T {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *field
}

// Ready returns nil while every new pod on the node will be captured. Otherwise it returns a *[BlockedError], or several joined;
// errors.As(err, &blocked) finds the first.
func (a *Agent) Ready() error { return join(locked(a, &a.blocked)) }

// State holds the findings of an [Agent]. Before the agent has looked, all is zero.
type State struct {
	// Neighbours are the other meshes' plugins that are in the list with ours now.
	Neighbours []Neighbour
	// BinDirs are the runtime's directories of plugins.
	BinDirs []BinDir
	// OwnToken reports whether the plugin has the agent's own token although Options.Token is there for another: the API server binds
	// no tokens to nodes, or refuses them. The plugin then has the agent's rights.
	OwnToken bool
	// Failing are the pods whose newest ADD failed since the agent began, by namespace and name.
	Failing []FailingPod
	// FirstInstalled dates the entry's first installation on the node, and is remembered over boots: a pod whose network was set up
	// later, and without the plugin, should have had it. Zero: it was not yet.
	FirstInstalled time.Time
	// PutBack dates the last time that the entry was put back after somebody or a boot had removed it: pods that started before then may lack
	// redirection for that reason, which is over. Zero: it has been in place since it was first installed.
	PutBack time.Time
}

// State returns what the agent knows now.
func (a *Agent) State() State {
	s := State{OwnToken: a.tokens.givesOwn(), Failing: a.m.failing.all()}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Neighbours, s.BinDirs = slices.Clone(a.neighbours), slices.Clone(a.binDirs)
	s.FirstInstalled, s.PutBack = a.installed, a.since
	return s
}

// stuckAfter is the age of the last turn from which the loop counts as stuck. It runs every few seconds; only a hanging file system delays it.
const stuckAfter = time.Minute

// Healthy returns an error when the agent is stuck and a restart may help.
func (a *Agent) Healthy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since := a.now().Sub(a.lastLoop); since > stuckAfter {
		return fmt.Errorf("the loop has been stuck for %s", since.Round(time.Second))
	}
	return nil
}

// present returns the present configuration.
func (a *Agent) present() Config { return locked(a, &a.config) }

// Run installs the plugin and keeps it installed until the context ends. While it cannot install, it waits, and Ready says
// why. With UninstallOnExit, it then returns the error of [Uninstall]; otherwise nil.
func (a *Agent) Run(ctx context.Context) error {
	cfg := a.present()
	a.sock = newLogSocket(filepath.Join(cfg.RunDir, netconf.LogSocketName), a.opts.PluginLog, a.m)
	a.sock.unread, a.sock.decided = a.tokens.suspect, a.opts.OnDecision
	defer a.sock.close()
	defer a.lease.end()
	if os.Remove(marker(cfg)) == nil {
		a.log.Info("an earlier uninstall is over")
	}
	w := newWatcher(a.log, map[string][]string{cfg.RunDir: {cfg.KubeconfigName, "uninstalled", netconf.LogSocketName, "agent"}})
	defer w.close()
	a.tokens.changed = w.poke
	wait := a.tokens.start(ctx)
	a.loop(ctx, w)
	wait()
	// The end of the context must not cut off the uninstall, which is short.
	if ctx = context.WithoutCancel(ctx); !a.shallUninstall(ctx) {
		return nil
	}
	_, err := uninstall(ctx, a.present(), a.log)
	return err
}

// shallUninstall decides and logs whether to uninstall at the end.
func (a *Agent) shallUninstall(ctx context.Context) bool {
	superseded := func() bool {
		act := !a.lease.foreign()
		if act {
			act, _ = a.lease.keep()
		}
		if !act {
			a.log.Info("stopping; another agent keeps the plugin installed")
		}
		return !act
	}
	switch {
	case !a.opts.UninstallOnExit:
		a.log.Info("stopping; the plugin stays installed")
		return false
	case superseded():
		return false
	case a.opts.Leaving == nil:
		return true
	}
	leaving, why := a.opts.Leaving(ctx)
	if !leaving {
		a.log.Info("stopping; the plugin stays installed", "because", why)
		return false
	}
	a.log.Info("stopping for good; the plugin is taken back", "because", why)
	return !superseded() // another agent may have begun while Leaving was asked
}

func (a *Agent) loop(ctx context.Context, w *watcher) {
	for ctx.Err() == nil {
		w.arm(a.watched())
		a.m.polling.Set(map[bool]float64{true: 1}[w.polling()])
		pause := a.opts.Poll
		if w.polling() {
			pause = min(pause, 500*time.Millisecond)
		}
		soon := a.reconcile(ctx)
		a.mu.Lock()
		a.lastLoop = a.now()
		a.mu.Unlock()
		if soon > 0 {
			pause = min(pause, soon)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-w.wake:
			// Look once at a burst of events: a rewrite is several, and ours cause some too.
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// watched returns the directories in which a change matters.
func (a *Agent) watched() []string {
	c := a.present()
	dirs := append([]string{c.CNIConfDir, c.ServiceAccountDir, c.RunDir, c.BinSourceDir}, c.CNIBinDirs...)
	if snap, err := takeSnapshot(c.CNIConfDir); err == nil {
		dirs = append(dirs, snap.links...)
	}
	return append(dirs, a.opts.ReloadDirs...)
}

func (a *Agent) reload() {
	if a.opts.Reload == nil {
		return
	}
	next, err := a.opts.Reload()
	if err == nil {
		err = next.Validate()
	}
	if err == nil {
		err = a.present().Keeps(next)
	}
	if err != nil {
		if a.refuse(err.Error()) {
			a.m.reloads.WithLabelValues("refused").Inc()
			a.log.Error("the changed configuration is refused; the old one stays", "error", err)
		}
		return
	}
	a.refuse("")
	if !reflect.DeepEqual(next, a.present()) {
		a.mu.Lock()
		a.config = next
		a.mu.Unlock()
		a.m.reloads.WithLabelValues("applied").Inc()
		a.log.Info("the changed configuration is applied")
	}
}

// refuse notes why a configuration is refused, and reports whether that is new. Empty: it is not.
func (a *Agent) refuse(why string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := a.refused != why
	a.refused = why
	return changed
}

// Keeps returns an error if an agent that runs with this configuration cannot take the next one, because that would leave something
// behind at the old place.
func (c Config) Keeps(next Config) error {
	var errs []error
	for _, f := range []struct{ key, old, next string }{
		{"run-dir", c.RunDir, next.RunDir},
		{"cni-conf-dir", c.CNIConfDir, next.CNIConfDir},
		{"cni-bin-dir", fmt.Sprint(c.CNIBinDirs), fmt.Sprint(next.CNIBinDirs)},
		{"cni-conf-name", c.CNIConfName, next.CNIConfName},
		{"chained", fmt.Sprint(c.Chained), fmt.Sprint(next.Chained)},
		{"nri-plugin-dir and preinstall", c.HookDir + " " + c.Preinstall, next.HookDir + " " + next.Preinstall},
		{"alone", fmt.Sprint(c.Alone), fmt.Sprint(next.Alone)},
		{"the kubeconfig's name", c.KubeconfigName, next.KubeconfigName},
		{"the plugin's type", c.pluginType(), next.pluginType()},
	} {
		if f.old != f.next {
			errs = append(errs, fmt.Errorf("%s changes from %q to %q, which needs a restart of the agent", f.key, f.old, f.next))
		}
	}
	return errors.Join(errs...)
}
