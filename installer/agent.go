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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// Options are what an [Agent] needs. Only Config is required.
type Options struct {
	// Config is the initial configuration.
	Config Config
	// Reload returns the present configuration. It is called whenever a file in ReloadDirs has changed, and every Poll. On
	// an error, the agent keeps the configuration that it has. Nil: Config never changes.
	Reload func() (Config, error)
	// ReloadDirs are the directories of the files that Reload reads.
	ReloadDirs []string
	// Log is the agent's log. Nil discards it.
	Log *slog.Logger
	// PluginLog receives the plugins' log records, one JSON object a line. Nil discards them.
	PluginLog io.Writer
	// Registry receives the metrics. Nil: there are none.
	Registry prometheus.Registerer
	// UninstallOnExit makes Run uninstall when its context ends. Default: the plugin stays, and new pods of the mesh are
	// captured, or wait once the token has expired; they never bypass the mesh.
	UninstallOnExit bool
	// Leaving is asked, with UninstallOnExit, when the context has ended: is the agent leaving for good, and how is that
	// known? If not, the plugin stays. It must answer within seconds. Nil: always uninstall.
	Leaving func(context.Context) (leaving bool, why string)
	// Poll is how often to look at the node if no change was announced: 5 s by default, and at most 500 ms without inotify.
	Poll time.Duration
	// Settle is how long a file must stay invalid before a later one is chosen instead: 300 ms by default. An owner that
	// writes in place leaves the file invalid for an instant.
	Settle time.Duration
}

// Agent keeps the plugin installed on a node. Make one with [New]. Its methods are safe for concurrent use.
type Agent struct {
	opts Options
	log  *slog.Logger
	m    *metrics
	obs  *observer
	sock *logSocket
	now  func() time.Time

	mu       sync.Mutex
	config   Config
	blocked  []*Blocked
	target   string
	lastLoop time.Time

	// Only the loop uses these.
	conflict   *conflict
	wrote      []byte          // the target when it last had our entry
	held       map[string]bool // files that have had our entry
	doubt      string          // the choice that Settle delays
	doubtSince time.Time
	failedFor  time.Duration
	refused    string
	rested     bool
	lease      *lease
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
	return &Agent{
		opts: opts, log: opts.Log, m: newMetrics(opts.Registry), obs: newObserver(), now: time.Now, config: opts.Config,
		blocked: []*Blocked{{CodeStarting, errors.New("the node has not been looked at yet")}},
		lease:   leaseOf(opts.Config), lastLoop: time.Now(), conflict: newConflict(), held: map[string]bool{},
	}, nil
}

// Ready returns nil while every new pod on the node will be captured. Otherwise it returns a *[Blocked], or several joined;
// errors.As(err, &blocked) finds the first.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return join(a.blocked)
}

// stuckAfter is when the loop counts as stuck. It turns every few seconds; only a hanging file system keeps it longer.
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

// Config returns the present configuration.
func (a *Agent) Config() Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config
}

// Run installs the plugin and keeps it installed until the context ends. It waits for a node on which it cannot install, and
// Ready says why. Its errors are those of [Uninstall], with UninstallOnExit.
func (a *Agent) Run(ctx context.Context) error {
	cfg := a.Config()
	a.sock = newLogSocket(filepath.Join(cfg.RunDir, netconf.LogSocketName), a.opts.PluginLog, a.m)
	defer a.sock.close()
	defer a.lease.end()
	if os.Remove(marker(cfg)) == nil {
		a.log.Info("an earlier uninstall is over")
	}
	w := newWatcher(a.log, map[string][]string{cfg.RunDir: {cfg.KubeconfigName, "uninstalled", netconf.LogSocketName, "agent"}})
	defer w.close()
	a.loop(ctx, w)
	// The uninstall takes no long time, and must not be cut off by the end of the context.
	if ctx = context.WithoutCancel(ctx); !a.shallUninstall(ctx) {
		return nil
	}
	_, err := uninstall(ctx, a.Config(), a.log)
	return err
}

// shallUninstall decides, and logs, whether the plugin is taken back at the end.
func (a *Agent) shallUninstall(ctx context.Context) bool {
	superseded := func() bool {
		act, _ := a.lease.keep()
		if !act {
			a.log.Info("stopping; another agent has begun since and keeps the plugin installed")
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
		if soon := a.reconcile(ctx); soon > 0 {
			pause = min(pause, soon)
		}
		a.mu.Lock()
		a.lastLoop = a.now()
		a.mu.Unlock()
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
	c := a.Config()
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
		err = fixed(a.Config(), next)
	}
	if err != nil {
		if a.refused != err.Error() {
			a.refused = err.Error()
			a.m.reloads.WithLabelValues("refused").Inc()
			a.log.Error("the changed configuration is refused; the old one stays", "error", err)
		}
		return
	}
	a.refused = ""
	if !reflect.DeepEqual(next, a.Config()) {
		a.mu.Lock()
		a.config = next
		a.mu.Unlock()
		a.m.reloads.WithLabelValues("applied").Inc()
		a.log.Info("the changed configuration is applied")
	}
}

// fixed refuses changes that would leave something behind at the old place.
func fixed(old, next Config) error {
	var errs []error
	for _, f := range []struct{ key, old, next string }{
		{"run-dir", old.RunDir, next.RunDir},
		{"cni-conf-dir", old.CNIConfDir, next.CNIConfDir},
		{"cni-bin-dir", fmt.Sprint(old.CNIBinDirs), fmt.Sprint(next.CNIBinDirs)},
		{"cni-conf-name", old.CNIConfName, next.CNIConfName},
		{"chained", fmt.Sprint(old.Chained), fmt.Sprint(next.Chained)},
		{"the kubeconfig's name", old.KubeconfigName, next.KubeconfigName},
		{"the plugin's type", old.pluginType(), next.pluginType()},
	} {
		if f.old != f.next {
			errs = append(errs, fmt.Errorf("%s changes from %q to %q, which needs a restart of the agent", f.key, f.old, f.next))
		}
	}
	return errors.Join(errs...)
}
