//go:build linux

package installer

import (
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
)

// Options are what an [Agent] needs besides the node's configuration.
type Options struct {
	// Config is what is wanted at first.
	Config Config
	// Reload gives what is wanted now; called whenever a file in ReloadDirs has changed, and now and then. An error keeps
	// what was wanted before. Nil: Config stays.
	Reload func() (Config, error)
	// ReloadDirs are the directories of the files that Reload reads.
	ReloadDirs []string
	// Log is the agent's own. Nil discards.
	Log *slog.Logger
	// PluginLog gets the plugins' records, one JSON object a line. Nil discards.
	PluginLog io.Writer
	// Registry gets the metrics. Nil: there are none.
	Registry prometheus.Registerer
	// UninstallOnExit takes everything back when Run's context ends. Default: the plugin stays, and pods that start
	// meanwhile are captured by it, or wait once the token counts no more, but never bypass the mesh.
	UninstallOnExit bool
	// Leaving is asked then, with UninstallOnExit, whether the agent goes for good, and why it thinks so: only then
	// everything is taken back. It must answer in seconds. Nil: it always does.
	Leaving func(context.Context) (leaving bool, why string)
	// Poll is how often to look although nothing was announced: 0 for 5 s. Without inotify it is at most 500 ms.
	Poll time.Duration
	// Settle is how long a file must stay unloadable before a later one is chosen instead: 0 for 300 ms. An owner that
	// writes in place is invalid for an instant.
	Settle time.Duration
}

// Agent keeps the plugin installed on a node. Make one with [New]; its methods may be called at any time.
type Agent struct {
	opts Options
	log  *slog.Logger
	m    *metrics
	obs  observer
	sock *logSocket
	now  func() time.Time

	mu       sync.Mutex
	config   Config
	blocked  []*Blocked
	target   string
	lastLoop time.Time

	// Only the loop uses these.
	fight      *fight
	wrote      []byte          // the target as we last knew it with our entry in
	held       map[string]bool // targets that have had our entry
	doubt      string          // the choice that is being waited out
	doubtSince time.Time
	failedFor  time.Duration
	refused    string
	rested     bool
	lease      *lease
}

// New makes an agent. Errors: those of Config.Validate.
func New(opts Options) (*Agent, error) {
	if err := opts.Config.Validate(); err != nil {
		return nil, err
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.PluginLog == nil {
		opts.PluginLog = io.Discard
	}
	if opts.Registry == nil {
		opts.Registry = prometheus.NewRegistry()
	}
	if opts.Poll == 0 {
		opts.Poll = 5 * time.Second
	}
	if opts.Settle == 0 {
		opts.Settle = 300 * time.Millisecond
	}
	return &Agent{
		opts: opts, log: opts.Log, m: newMetrics(opts.Registry), now: time.Now, config: opts.Config,
		blocked: []*Blocked{{"starting", errors.New("the node has not been looked at yet")}},
		lease:   leaseOf(opts.Config), lastLoop: time.Now(), fight: newFight(), held: map[string]bool{},
	}, nil
}

// Ready is nil while every new pod on the node will be captured, else a *[Blocked] that says why not, or several joined:
// errors.As(err, &blocked) gives the first.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return reasons(a.blocked)
}

// stuckAfter is when the loop counts as stuck: it turns every few seconds, and only a hanging file system keeps it longer.
const stuckAfter = time.Minute

// Healthy is nil unless the agent is stuck, so that only a restart helps: for a liveness probe.
func (a *Agent) Healthy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since := a.now().Sub(a.lastLoop); since > stuckAfter {
		return fmt.Errorf("the loop has been stuck for %s", since.Round(time.Second))
	}
	return nil
}

// Config is what is wanted now.
func (a *Agent) Config() Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config
}

// Run installs and keeps installed until the context ends; that is no error. Errors: a run directory that cannot be
// used. A node that cannot be installed on is none: it is waited for, and Ready says why.
func (a *Agent) Run(ctx context.Context) error {
	cfg := a.Config()
	a.sock = newLogSocket(filepath.Join(cfg.RunDir, "log.sock"), a.opts.PluginLog, a.m)
	defer a.sock.close()
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		return explain(err, cfg.RunDir)
	}
	if err := a.lease.claim(); err != nil {
		return err
	}
	defer a.lease.end()
	if os.Remove(marker(cfg)) == nil {
		a.log.Info("an earlier uninstall is over")
	}
	w := newWatcher(a.log, map[string]func(string) bool{
		cfg.RunDir: func(name string) bool {
			return name == "kubeconfig" || name == "uninstalled" || name == "log.sock" || name == "agent"
		},
	})
	defer w.close()
	a.loop(ctx, w)
	if !a.opts.UninstallOnExit {
		a.log.Info("stopping; the plugin stays installed")
		return nil
	}
	if act, _ := a.lease.keep(); !act {
		a.log.Info("stopping; another agent has begun since and keeps the plugin installed")
		return nil
	}
	// The context has ended; taking back is short and must not be cut off by it.
	ctx = context.WithoutCancel(ctx)
	if a.opts.Leaving != nil {
		leaving, why := a.opts.Leaving(ctx)
		if !leaving {
			a.log.Info("stopping; the plugin stays installed", "because", why)
			return nil
		}
		a.log.Info("stopping for good; the plugin is taken back", "because", why)
		if act, _ := a.lease.keep(); !act {
			a.log.Info("stopping; another agent has begun since and keeps the plugin installed")
			return nil
		}
	}
	_, err := uninstall(ctx, a.Config(), a.log)
	return err
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
			// A burst of events is looked at once: a rewrite is several, and ours cause some too.
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// watched are the directories in which a change matters.
func (a *Agent) watched() []string {
	c := a.Config()
	dirs := append([]string{c.CNIConfDir, c.ServiceAccountDir, c.RunDir, c.BinSourceDir}, c.CNIBinDirs...)
	if snap, err := TakeSnapshot(c.CNIConfDir); err == nil {
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
		{"the plugin's type", pluginTypeOf(old), pluginTypeOf(next)},
	} {
		if f.old != f.next {
			errs = append(errs, fmt.Errorf("%s changes from %q to %q, which needs a restart of the agent", f.key, f.old, f.next))
		}
	}
	return errors.Join(errs...)
}
