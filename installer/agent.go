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
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/internal/node/news"
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
	// SwitchAuto takes no list of its own. It must not wait. Nil: they are not.
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
	opts    Options
	log     *slog.Logger
	m       *metrics
	tokens  *tokens
	now     func() time.Time
	boot    func() string
	contest contest

	mu    sync.Mutex
	shown shown
}

// shown is the part of the loop's state that others may read.
type shown struct {
	config     Config
	refused    string // why the configuration that Reload has found is refused; empty: it is not
	lastLoop   time.Time
	blocked    []*BlockedError
	neighbours []Neighbour
	binDirs    []BinDir
	since      time.Time   // see State.PutBack
	installed  time.Time   // see State.FirstInstalled
	ownFile    status.News // that a file of our own is kept since the agent began; zero: it is not, or was before
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
	if opts.Reload == nil {
		opts.Reload = func() (Config, error) { return opts.Config, nil }
	}
	if opts.Leaving == nil {
		opts.Leaving = func(context.Context) (bool, string) { return true, "it was asked for" }
	}
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
		opts: opts, log: opts.Log, m: m, now: time.Now, boot: bootID, contest: usualContest,
		tokens: &tokens{ask: opts.Token, log: opts.Log, failed: m.failures.WithLabelValues("token").Inc, now: time.Now, doubt: make(chan struct{}, 1)},
		shown: shown{
			config: opts.Config, lastLoop: time.Now(),
			blocked: []*BlockedError{{codeStarting, errors.New("the node has not been looked at yet")}},
		},
	}, nil
}

// showing returns what the loop shows.
func (a *Agent) showing() shown {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown
}

// show changes what the loop shows. The loop replaces the slices as a whole.
func (a *Agent) show(change func(*shown)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.shown)
}

// Ready returns nil while every new pod on the node will be captured. Otherwise it returns a *[BlockedError], or several joined;
// errors.As(err, &blocked) finds the first.
func (a *Agent) Ready() error { return join(a.showing().blocked) }

// News returns what people should know of the node: why new pods are not captured, that a changed configuration is refused, which other mesh's
// plugin is beside ours, and that the agent keeps a file of its own because its entry did not stay in the network's.
func (a *Agent) News() (all []status.News) {
	is := a.showing()
	for _, b := range is.blocked {
		all = append(all, news.NotReady(b.Code, b.Err)...)
	}
	if is.refused != "" {
		all = append(all, news.Refused(is.refused))
	}
	for _, n := range is.neighbours {
		other := news.New(status.KindNotice, news.OtherMesh, n.Text())
		other.Where = n.Plugin
		all = append(all, other)
	}
	if is.ownFile.Text != "" {
		all = append(all, is.ownFile)
	}
	return all
}

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
	is := a.showing()
	return State{
		Neighbours: slices.Clone(is.neighbours), BinDirs: slices.Clone(is.binDirs), OwnToken: a.tokens.givesOwn(), Failing: a.m.failing.all(),
		FirstInstalled: is.installed, PutBack: is.since,
	}
}

// stuckAfter is the age of the last turn from which the loop counts as stuck. It runs every few seconds; only a hanging file system delays it.
const stuckAfter = time.Minute

// Healthy returns an error when the agent is stuck and a restart may help.
func (a *Agent) Healthy() error {
	if since := a.now().Sub(a.showing().lastLoop); since > stuckAfter {
		return fmt.Errorf("the loop has been stuck for %s", since.Round(time.Second))
	}
	return nil
}

// present returns the present configuration.
func (a *Agent) present() Config { return a.showing().config }

// Run installs the plugin and keeps it installed until the context ends. While it cannot install, it waits, and Ready says
// why. With UninstallOnExit, it then returns the error of [Uninstall]; otherwise nil.
func (a *Agent) Run(ctx context.Context) error {
	cfg := a.present()
	l := a.newLoop()
	defer l.end()
	if os.Remove(marker(cfg)) == nil {
		a.log.Info("an earlier uninstall is over")
	}
	w := newWatcher(a.log, map[string][]string{cfg.RunDir: {cfg.KubeconfigName, "uninstalled", netconf.LogSocketName, "agent"}})
	defer w.close()
	a.tokens.changed = w.poke
	wait := a.tokens.start(ctx)
	l.run(ctx, w)
	wait()
	// The end of the context must not cut off the uninstall, which is short.
	if ctx = context.WithoutCancel(ctx); !l.shallUninstall(ctx) {
		return nil
	}
	_, err := uninstall(ctx, a.present(), a.log)
	return err
}

// reload returns the configuration that Reload finds, or the present one if that is refused.
func (a *Agent) reload() Config {
	was := a.showing()
	next, err := a.opts.Reload()
	if err == nil {
		err = next.Validate()
	}
	if err == nil {
		err = was.config.Keeps(next)
	}
	if err != nil {
		if a.show(func(s *shown) { s.refused = err.Error() }); was.refused != err.Error() {
			a.m.reloads.WithLabelValues("refused").Inc()
			a.log.Error("the changed configuration is refused; the old one stays", "error", err)
		}
		return was.config
	}
	if a.show(func(s *shown) { s.config, s.refused = next, "" }); !reflect.DeepEqual(next, was.config) {
		a.m.reloads.WithLabelValues("applied").Inc()
		a.log.Info("the changed configuration is applied")
	}
	return next
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
