//go:build linux

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/internal/program/versionmetric"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// Options configure an [Agent]. Only Config is required, whose Identity says what the agent is called.
type Options struct {
	// Dialects are those that Config may name. Nil means the built-in ones. An agent of dialects that cannot work still installs the
	// plugin, which refuses pods then, and is never ready.
	Dialects []dialect.Dialect
	// Facts describe your own meshes for people and commands, beside their dialects. This module's are known.
	Facts mesh.List
	// Config holds the settings.
	Config Config
	// API reaches the API server. Nil: Config's KubernetesHost does, with the service account in its ServiceAccountDir.
	API *rest.Config
	// Proxy takes the pods of meshes whose proxy is on the node, with Config.Ambient. Nil: proxies that ask for them as Istio's
	// ztunnel does, at Config.Ambient.ZDSSocket.
	Proxy nodeproxy.Proxy
	// Log is the agent's log, PluginLog receives the plugins' log records, one JSON object a line. Nil discards them.
	Log       *slog.Logger
	PluginLog io.Writer
	// Load returns the present settings. It is called when a file in Watch has changed, and every few seconds. On an error, or if the
	// agent cannot take them, it keeps those that it has, and warns. Nil: they change by [Agent.Reload] alone.
	Load  func() (Config, error)
	Watch []string
	// Reloaded is called with settings of Load that the agent has taken. Nil: nobody is told.
	Reloaded func(Config)

	known   *inventory.Inventory        // nil: no agent has been made
	made    func() (*api.Client, error) // the same
	asked   bool                        // the dialects have been asked whether they can work
	invalid error                       // their answer
	open    func(repair.Options) (controller, error)
	unheard time.Duration // for how long the API server may tell nothing; zero: [unheard.For]
}

func builtIn(known []dialect.Dialect) []dialect.Dialect {
	if known == nil {
		return builtin.All()
	}
	return known
}

func (o Options) withDefaults() Options {
	o.Config.Identity = o.Config.Identity.WithDefaults()
	o.Dialects = builtIn(o.Dialects)
	if !o.asked { // once, since it takes milliseconds
		o.asked, o.invalid = true, dialect.Validate(o.Dialects)
	}
	o.Facts = facts.Beside(o.Facts, o.Dialects)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.open == nil {
		o.open = openRepair
	}
	o.Config.ProcRoot = cmp.Or(o.Config.ProcRoot, "/proc")
	return o
}

// inventory is the agent's, or, without one, a new one of the settings.
func (o Options) inventory(s Config) *inventory.Inventory {
	if o.known != nil {
		return o.known
	}
	return inventory.New(inventory.Options{Records: attachment.Open(s.RunDir), CacheDir: s.CNICacheDir})
}

func (o Options) name() string    { return o.Config.Identity.Agent }
func (o Options) version() string { return cmp.Or(o.Config.Identity.Version, version.Long()) }

// meshes are those that the plugin decides by.
func (o Options) meshes(s Config) (dialect.Set, error) {
	if o.invalid != nil {
		return dialect.Set{}, o.invalid
	}
	set, err := dialect.Configure(o.Dialects, s.Effective())
	return set, dialect.ByFlag(err, byFlag)
}

// byFlag puts a flag's name before its fault.
func byFlag(e *dialect.KeyError) error { return fmt.Errorf("%s: %w", e.Flag(), e.Err) }

// Agent is the agent of a node. Make one with [New]. Its methods are safe for concurrent use.
type Agent struct {
	options Options
	log     *slog.Logger
	turn    *turn
	invalid error // the dialects cannot work
	repairs *repairer
	held    *proxied  // nil without Config.Ambient
	sock    *socket   // nil: the plugin does not ask this agent
	left    *leftover // nil: no pods are left of an agent with Config.Ambient
	full    tables
	hook    *runtimeHook
	kernel  *tried
	cilium  *cilium
	past    passedBy
	install *installer.Agent // nil with Config.InstalledElsewhere
	metrics *prometheus.Registry
	serving serve.Options
	handler http.Handler

	ran       atomic.Bool
	listening atomic.Pointer[served]            // nil: not yet
	events    atomic.Pointer[nodeevents.Events] // nil: the node has no name, or the agent does not run
	leaving   func(context.Context) (bool, string)

	mu      sync.Mutex
	config  Config // in force
	refused string // why the settings of Load are refused; empty: they are not
}

// New returns an agent, which does nothing before [Agent.Run]. Its errors are those of [Config.Validate].
func New(o Options) (*Agent, error) {
	o = o.withDefaults()
	if len(o.Dialects) == 0 {
		return nil, o.invalid
	}
	if err := o.Config.validate(o.invalid == nil, o.Dialects); err != nil {
		return nil, err
	}
	told := &runtimeHook{limit: nodeevents.Limit()}
	o.known = inventory.New(inventory.Options{Records: attachment.Open(o.Config.RunDir), CacheDir: o.Config.CNICacheDir, Runtime: told.rows})
	unmade := o
	o.made = sync.OnceValues(func() (*api.Client, error) { return unmade.client(unmade.Config) })
	a := &Agent{options: o, hook: told, log: o.Log, turn: newTurn(), invalid: because(codeDialectsInvalid, o.invalid), config: o.Config, metrics: prometheus.NewRegistry()}
	if a.invalid != nil {
		o.Config.Repair, o.Config.AutoEvict, o.Config.Ambient.Enabled = repair.Options{}, false, false
	}
	a.repairs = o.newRepairer()
	a.full = newTables(o.Config, func() []status.Pod { return merge(a.repairs.pods(), a.held.pods()) }, func(uid string) *corev1.Pod { return a.sock.podByUID(uid) }, o.Log)
	var err error
	if a.invalid == nil {
		if err = a.openSocket(o); err != nil {
			return nil, err
		}
		a.left = o.newLeftover(o.Config)
	}
	a.kernel = o.newTried(a.present, a.notify)
	a.connect()
	told.agent = a
	if !o.Config.InstalledElsewhere {
		if a.install, err = installer.New(a.installation()); err != nil {
			return nil, err
		}
		a.repairs.since = func() time.Time { return a.install.State().FirstInstalled }
	}
	a.cilium = o.newCilium(func() []string {
		n := a.api()
		return n.installed(n.settings()).Plugins
	})
	a.metrics.MustRegister(a.repairs, a.full, a.sock, a.kernel, a.cilium, a.hook)
	if client, err := o.made(); err == nil {
		a.metrics.MustRegister(client)
	}
	if a.held != nil {
		a.metrics.MustRegister(a.held)
	}
	served := versionmetric.Registry(o.Config.Identity, o.name())
	served.MustRegister(a)
	a.serving = serve.Options{
		Local: a.api().handler(), HealthAddress: o.Config.HealthAddress, MetricsAddress: o.Config.MetricsAddress, Log: o.Log, Metrics: served,
		Healthy: a.Healthy, Ready: a.Ready, Warnings: a.allWarnings,
	}
	if o.Config.Alone {
		a.serving.Mode = "alone: pods are captured at the container runtime's hook, and nothing is in the node's network"
	}
	a.handler = a.serving.OneHandler()
	return a, nil
}

// openSocket makes what serves the agent's socket, and what has the pods of the node's proxy.
func (a *Agent) openSocket(o Options) (err error) {
	if !o.Config.Ambient.Enabled {
		a.sock, err = o.openSocket(o.Config)
		return err
	}
	pods, err := o.nodePods(o.Config)
	if err != nil {
		return err
	}
	a.held = newProxied(o.Config, o.Log, nil)
	a.held.open, a.held.forget = o.opener(a.held.present, pods, func() record.EventRecorder { return a.recorder(o.name()) }, false), o.forgetProxied
	a.sock = o.newSocket(o.Config, pods, a.held)
	return nil
}

// connect gives the parts what each has to know of the others.
func (a *Agent) connect() {
	if a.sock != nil {
		a.sock.states, a.sock.left = a.pods, a.left
		if a.sock.pods != nil {
			a.repairs.watch = a.sock.pods
		}
	}
	if a.left != nil {
		a.left.notify = a.notify
	}
	a.repairs.installed = a.installed
	a.repairs.events = func() record.EventRecorder { return a.recorder(a.options.Config.Identity.Program("repair")) }
	a.repairs.suspects = func() (texts []string) {
		for _, n := range a.neighbours() {
			texts = append(texts, n.String())
		}
		return texts
	}
	a.repairs.elsewhere = func(dialect string) bool { return servedBy(a.neighbours(), a.options.Facts, dialect) }
}

// installation returns the installer's options.
func (a *Agent) installation() installer.Options {
	o := a.options
	all := installer.Options{
		Config: o.Config.Config, Log: o.Log, PluginLog: o.PluginLog, Registry: a.metrics, UninstallOnExit: o.Config.UninstallOnExit != OnExitKeep,
		Leaving: a.leavingFor(), Token: o.pluginToken(o.Config), OnDecision: a.repairs.decided, OnTurn: a.turn.set, Notify: a.notify,
		TakeOver: func() error { return errors.Join(a.left.ready(), a.kernel.ready(), a.hook.able()) },
		TakeBack: a.hook.ready,
	}
	if a.invalid != nil {
		all.TakeOver = func() error { return a.invalid }
		return all
	}
	all.Reload, all.ReloadDirs = a.load, o.Watch
	return all
}

// leavingFor returns what tells whether the agent leaves the node for good, when it ends. Nil: it does.
func (a *Agent) leavingFor() (leaving func(context.Context) (bool, string)) {
	if a.options.Config.UninstallOnExit == OnExitAuto {
		leaving = func(ctx context.Context) (bool, string) { return a.leaving(ctx) }
	}
	if a.held != nil {
		leaving = a.held.leaving(leaving)
	}
	return leaving
}

// Run is the agent, until the context ends. An agent runs once.
func (a *Agent) Run(ctx context.Context) error {
	if a.ran.Swap(true) {
		return errors.New("the agent runs or has run already")
	}
	o := a.options
	if a.invalid != nil {
		a.log.Error("the dialects cannot work, so the plugin refuses pods, and nothing is repaired or served", "error", a.invalid.Error())
	}
	if o.Config.Node != "" {
		events, quiet := o.events(o.Config)
		defer quiet()
		a.events.Store(events)
	}
	if o.Config.UninstallOnExit == OnExitAuto {
		leaving, stop := o.watchDaemonSet(ctx, o.Config, o.Log)
		defer stop()
		a.leaving = leaving
	}
	listening, stop, err := startAnswering(a.turn, o.Config.StartSocket, a.installed, a.serving)
	if err != nil {
		return err
	}
	defer stop()
	a.listening.Store(listening)
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return a.tell(ctx) })
	both.Go(func() error { return a.turn.first(ctx, a.cilium.run) })
	both.Go(func() error { return a.turn.first(ctx, a.repairs.run) })
	// What the agent needs to release its pods, when it leaves for good or the next one has none, goes on until it has ended.
	staying, leave := context.WithCancel(context.WithoutCancel(ctx))
	both.Go(func() error {
		defer leave()
		defer a.held.awaitReleases(staying)
		return a.keepInstalled(ctx)
	})
	if a.invalid == nil {
		both.Go(func() error {
			return a.kernel.run(ctx, func() bool { acts, _, _ := a.turn.now(); return acts })
		})
	}
	if o.Config.Node != "" {
		both.Go(func() error { return a.repairs.tellOtherDialects(ctx, a.notify) })
	}
	both.Go(func() error { return a.turn.first(staying, a.sock.run) })
	both.Go(func() error { return a.turn.first(staying, a.held.run) })
	if a.invalid == nil {
		both.Go(func() error { return a.turn.first(ctx, a.hook.run) })
	}
	both.Go(func() error { return a.left.run(ctx) })
	both.Go(func() error {
		return a.turn.first(ctx, reporter{path: filepath.Join(o.Config.RunDir, statusFile), log: o.Log, now: a.Status}.run)
	})
	err = both.Wait()
	if acts, _, _ := a.turn.now(); !acts && !a.turn.ended() {
		a.left.undo()
	}
	return err
}

// pollEvery is the interval at which settings are loaded where no installer does.
const pollEvery = 5 * time.Second

// keepInstalled runs the installer until the context ends. Without one, the agent acts at once.
func (a *Agent) keepInstalled(ctx context.Context) error {
	if a.install != nil {
		return a.install.Run(ctx)
	}
	c := a.options.Config
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil { //nolint:gosec // as the installer's
		return err
	}
	a.turn.set(true, false)
	for ctx.Err() == nil {
		if a.invalid == nil {
			_, _ = a.load() // it is noted
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
	if leaving := a.leavingFor(); leaving != nil && c.UninstallOnExit != OnExitKeep {
		leaving(context.WithoutCancel(ctx)) // which releases the pods of the node's proxy
	}
	return nil
}

// load takes the settings of Options.Load, if there is one, and returns those in force. On an error they are as before.
func (a *Agent) load() (installer.Config, error) {
	if a.options.Load == nil {
		return a.present().Config, nil
	}
	next, err := a.options.Load()
	if err == nil {
		err = a.Reload(next)
	}
	a.mu.Lock()
	a.refused = ""
	if err != nil {
		a.refused = err.Error()
	}
	a.mu.Unlock()
	if err == nil && a.options.Reloaded != nil {
		a.options.Reloaded(next)
	}
	return a.present().Config, err
}

// Reload takes changed settings: the parts that they concern start anew with them, and the plugin's entry follows within seconds. If the
// settings are wrong, or need another agent, it returns an error, and those before them stay in force.
func (a *Agent) Reload(next Config) error {
	next.ProcRoot = cmp.Or(next.ProcRoot, "/proc")
	before := a.present()
	if a.invalid != nil {
		return a.invalid
	}
	if reflect.DeepEqual(before, next) {
		return nil
	}
	err := next.validate(true, a.options.Dialects)
	if err == nil {
		err = before.keeps(next)
	}
	if err == nil && next.Ambient.Enabled && !slices.ContainsFunc(next.Plugin.Dialects, func(name string) bool { return onNode(a.options.Dialects, name) }) {
		// Of an upgrade that switches ambient mode off, the agent sees this before its own end.
		err = fmt.Errorf("dialect %v: no mesh has its proxy on the node, and the pods of one are held: that needs a restart of the agent", next.Plugin.Dialects)
	}
	if err != nil {
		return err
	}
	meshes, err := a.options.meshes(next)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.config = next
	a.mu.Unlock()
	a.sock.change(meshes)
	a.repairs.change(next)
	a.held.change(next)
	return nil
}

// present returns the settings in force.
func (a *Agent) present() Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config
}

// recorder returns what records events in the name of a component; nil before Run.
func (a *Agent) recorder(component string) record.EventRecorder {
	if events := a.events.Load(); events != nil {
		return events.Recorder(component)
	}
	return nil
}

// notify tells the node's object of news.
func (a *Agent) notify(n installer.Notice) {
	if events := a.events.Load(); events != nil {
		events.OfNode(n.Warning, string(n.Code), n.Text)
	}
}

// tellEvery is the interval at which is looked for what [Agent.tell] tells.
const tellEvery = time.Second

// tell tells the log and the node's object of warnings that are new, until the context ends.
func (a *Agent) tell(ctx context.Context) error {
	for told := map[string]bool{}; ; {
		now := map[string]bool{}
		for _, text := range slices.Concat(a.listening.Load().unheard(), a.sock.outdated(), a.cilium.warnings(), a.hook.warnings()) {
			code, says, _ := strings.Cut(text, ": ")
			if now[code] = true; !told[code] {
				a.log.Warn(says, "code", code)
				a.notify(installer.Notice{Code: installer.NoticeCode(code), Warning: true, Text: says})
			}
		}
		told = now
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(tellEvery):
		}
	}
}

// pods returns the states of all pods that the agent knows.
func (a *Agent) pods() []status.Pod {
	all := a.full.mark(merge(a.repairs.pods(), slices.Concat(a.held.pods(), a.left.states())))
	if a.install == nil {
		return all
	}
	return withFailing(all, a.install.State().Failing, a.sock.podsOf)
}

// installed returns why new pods would not be captured, as far as that is the installer's to say.
func (a *Agent) installed() error {
	if a.install == nil {
		return nil
	}
	return a.install.Ready()
}

// neighbours returns the other meshes' plugins beside ours.
func (a *Agent) neighbours() []installer.Neighbour {
	if a.install == nil {
		return nil
	}
	return a.install.State().Neighbours
}

// Healthy returns an error when the agent is stuck and a restart may help.
func (a *Agent) Healthy() error {
	if a.install == nil {
		return nil
	}
	return a.install.Healthy()
}

// Ready returns nil while every new pod on the node will be captured, and once another agent of the node acts in place of this one.
// The error joins the reasons, each in a line that begins with a stable code.
func (a *Agent) Ready() error {
	if a.turn.ended() { // it is about to be stopped; that another agent has the node is no trouble
		return nil
	}
	return a.wrong()
}

// wrong returns the same without regard to other agents.
func (a *Agent) wrong() error {
	if a.invalid != nil {
		return errors.Join(a.installed(), a.repairs.ready(), a.sock.ready(), a.held.ready(), a.left.ready(), a.invalid)
	}
	return errors.Join(a.installed(), a.hook.ready(), a.kernel.ready(), a.passed(), a.repairs.ready(), a.sock.ready(), a.held.ready(), a.left.ready())
}

// passed returns why new pods of the mesh are to be expected to start past the plugin although it is in place, or nil.
func (a *Agent) passed() error {
	if a.install == nil || a.options.Config.Alone {
		return nil
	}
	return a.past.why(time.Now(), a.installed(), a.install.State().PutBack, a.repairs.pods(), a.sock.podByUID)
}

// warnings returns what needs somebody's attention.
func (a *Agent) warnings() []string {
	texts := slices.Concat(a.repairs.warnings(), a.held.warnings(), a.full.warnings(), a.left.warnings(), a.listening.Load().unheard(), a.sock.outdated(), a.cilium.warnings(), a.hook.warnings())
	if why := a.whyRefused(); why != "" {
		texts = append(texts, noticeConfigRefused+": the changed configuration is refused, and the one before it is in force: "+strings.ReplaceAll(why, "\n", "; "))
	}
	return texts
}

// whyRefused returns why changed settings are refused; empty: they are not.
func (a *Agent) whyRefused() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused
}

// allWarnings returns the other meshes' plugins too.
func (a *Agent) allWarnings() []string {
	texts := a.warnings()
	for _, n := range a.neighbours() {
		texts = append(texts, noticeOtherMesh+": "+n.Text())
	}
	return texts
}

// Status returns the state of the node: whether it is ready, what to look after, and the state of each of its pods in the mesh.
func (a *Agent) Status() Status {
	now := Status{Time: time.Now(), Node: a.options.Config.Node, Alone: a.options.Config.Alone, Warnings: a.warnings(), Pods: a.pods()}
	if err := a.wrong(); err != nil {
		now.NotReady = strings.Split(err.Error(), "\n")
	}
	now.Ready = len(now.NotReady) == 0
	return now
}

// Release takes all pods out of the care of the node's proxy, gives them to another agent, or has them captured again. It returns
// those for which that failed.
func (a *Agent) Release(ctx context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error) {
	if a.sock == nil {
		return nil, agentsock.ErrUnsupported
	}
	return a.sock.Release(ctx, r)
}

// ServeHTTP serves /healthz, /readyz and /metrics, and to who asks over the loopback interface the paths of package agentapi, for
// a server of the embedder's own.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Describe implements [prometheus.Collector]. The metrics change with the parts that run.
func (a *Agent) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (a *Agent) Collect(ch chan<- prometheus.Metric) { a.metrics.Collect(ch) }

// api returns what answers on the loopback interface.
func (a *Agent) api() nodeAPI {
	n := nodeAPI{
		options: a.options, settings: a.repairs.acting, auto: a.options.Config.AutoEvict, status: a.Status, neighbours: a.neighbours,
		pods: a.sock.podsOf, podByUID: a.sock.podByUID, binDirs: func() []installer.BinDir { return nil }, ownToken: func() bool { return false }, kernel: a.kernel,
		looks: &recent.Values[agentapi.Pod]{},
	}
	if a.install != nil {
		n.binDirs = func() []installer.BinDir { return a.install.State().BinDirs }
		n.ownToken = func() bool { return a.install.State().OwnToken }
	}
	return n
}
