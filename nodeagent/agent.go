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
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/news/reporter"
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

// Options configure an [Agent]. Dialects and Config are required, whose Identity says what the agent is called.
type Options struct {
	// Dialects are those that Config may name, your mesh's own or those of builtin.All; with none [New] returns an error. An agent of dialects
	// that cannot work still installs the plugin, which refuses pods then, and is never ready.
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
	report  *reporter.Reporter
	mayTell func() bool // whether the limit of events about pods allows one more
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
		return nil, fmt.Errorf("Options.Dialects: %w: builtin.All has those of this module", o.invalid)
	}
	if err := o.Config.validate(o.invalid == nil, o.Dialects); err != nil {
		return nil, err
	}
	told := newRuntimeHook(o.Config.Identity)
	o.known = inventory.New(inventory.Options{Records: attachment.Open(o.Config.RunDir), CacheDir: o.Config.CNICacheDir, Runtime: told.rows})
	unmade := o
	o.made = sync.OnceValues(func() (*api.Client, error) { return unmade.client(unmade.Config) })
	a := &Agent{options: o, hook: told, log: o.Log, turn: newTurn(), invalid: o.invalid, config: o.Config, metrics: prometheus.NewRegistry(), mayTell: nodeevents.Limit()}
	if a.invalid != nil {
		o.Config.Repair, o.Config.AutoEvict, o.Config.Ambient.Enabled = repair.Options{}, false, false
	}
	a.repairs = o.newRepairer()
	a.full = newTables(o.Config, a.inMesh, func(uid string) *corev1.Pod { return a.sock.podByUID(uid) }, o.Log)
	var err error
	if a.invalid == nil {
		if err = a.openSocket(o); err != nil {
			return nil, err
		}
		a.left = o.newLeftover(o.Config)
	}
	a.kernel = o.newTried(a.present)
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
	a.report = reporter.New(o.Config.Identity, a.list, a.tell, reporter.NodeGauges()...)
	a.metrics.MustRegister(a.repairs, a.full, a.sock, a.kernel, a.hook, a.report)
	if client, err := o.made(); err == nil {
		a.metrics.MustRegister(client)
	}
	if a.held != nil {
		a.metrics.MustRegister(a.held)
	}
	served := versionmetric.Registry(o.Config.Identity, o.name())
	served.MustRegister(a)
	a.serving = serve.Options{
		Local: a.api().server().Handler(), HealthAddress: o.Config.HealthAddress, MetricsAddress: o.Config.MetricsAddress, Log: o.Log, Metrics: served,
		Healthy: a.Healthy, Ready: a.Ready, News: a.report.News,
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
	a.held = newProxied(o.Config, o.Log, ambientOpener(a.ambient))
	a.held.forget = o.forgetProxied
	a.sock = o.newSocket(o.Config, pods, a.held)
	return nil
}

// ambient returns what the controller of the node's proxy is made of, with the present settings.
func (a *Agent) ambient() *ambientParts {
	o := a.options
	return &ambientParts{options: o, settings: a.held.present(), log: o.Log, pods: a.sock.pods, keeper: a.repairs.keeper, events: a.recorder(o.name())}
}

// connect gives the parts what each has to know of the others.
func (a *Agent) connect() {
	if a.sock != nil {
		a.sock.states, a.sock.left = a.pods, a.left
		if a.sock.pods != nil {
			a.repairs.watch, a.repairs.keeper = a.sock.pods, keeper.New(a.sock.pods)
		}
	}
	a.repairs.installed = a.installed
	a.repairs.events = func() nodeevents.Recorder { return a.recorder(a.options.Config.Identity.Program("repair")) }
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
		Config: o.Config.Config, Log: o.Log, PluginLog: o.PluginLog, Registry: a.metrics, UninstallOnExit: o.Config.UninstallOnExit.Wanted(),
		Leaving: a.leavingFor(), Token: o.pluginToken(o.Config), OnDecision: a.repairs.decided, OnTurn: a.turn.set, Hooked: a.hook.captures,
		TakeOver: func() error {
			return news.Err(slices.Concat(a.left.News(), a.kernel.News(), news.NotReady(codeNoHook, a.hook.able())))
		},
		TakeBack: a.hook.ready,
	}
	if a.invalid != nil {
		all.TakeOver = func() error { return news.Err(a.unable()) }
		return all
	}
	all.Reload, all.ReloadDirs = a.load, o.Watch
	return all
}

// leavingFor returns what tells whether the agent leaves the node for good, when it ends. Nil: it does.
func (a *Agent) leavingFor() (leaving func(context.Context) (bool, string)) {
	if a.options.Config.UninstallOnExit == installer.SwitchAuto {
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
	if o.Config.UninstallOnExit == installer.SwitchAuto {
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
	both.Go(func() error { a.report.Run(ctx); return nil })
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
	both.Go(func() error { return a.turn.first(staying, a.sock.run) })
	both.Go(func() error { return a.turn.first(staying, a.held.run) })
	both.Go(func() error { return a.turn.first(ctx, a.serveAPI) })
	if a.invalid == nil {
		both.Go(func() error { return a.turn.first(ctx, a.hook.run) })
	}
	both.Go(func() error { return a.left.run(ctx) })
	both.Go(func() error {
		return a.turn.first(ctx, statusWriter{path: filepath.Join(o.Config.RunDir, statusFile), log: o.Log, now: a.Status}.run)
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
	if leaving := a.leavingFor(); leaving != nil && c.UninstallOnExit.Wanted() {
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
func (a *Agent) recorder(component string) nodeevents.Recorder {
	if events := a.events.Load(); events != nil {
		return events.Recorder(component)
	}
	return nil
}

// tell tells people of news, by an event of the node or of the pod that it is about. The installer logs its own.
func (a *Agent) tell(n status.News) {
	if own := a.install != nil && (n.Code == news.OtherMesh || n.Code == news.ConfigRefused); n.Kind == status.KindNotice && n.Attention && !own {
		a.log.Warn(n.Text, "code", string(n.Code))
	}
	events := a.events.Load()
	switch {
	case events == nil:
	case n.Pod == status.ID{}:
		events.OfNode(n)
	case a.mayTell():
		pod := n.Pod
		if seen := a.sock.podByUID(pod.UID); seen != nil { // a static pod has another UID
			pod.UID = string(seen.UID)
		}
		events.OfPod(pod, n)
	}
}

// list concatenates the news of the parts of the agent. Before its turn and after it, the installer says why it does not
// act; nothing else is this agent's to say.
func (a *Agent) list() []status.News {
	var all []status.News
	if a.install != nil {
		all = a.install.News()
	} else if why := a.whyRefused(); why != "" {
		all = append(all, news.Refused(why))
	}
	if acts, _, _ := a.turn.now(); !acts && a.ran.Load() {
		return append(all, a.unable()...)
	}
	if a.invalid == nil {
		all = slices.Concat(all, a.hook.News(), a.kernel.News(), a.passed())
	}
	return slices.Concat(all, a.unable(), a.repairs.News(), a.sock.News(), a.held.News(), a.left.News(), a.listening.Load().News(), a.cilium.News(), a.full.News())
}

// unable says that the dialects cannot work.
func (a *Agent) unable() []status.News { return news.NotReady(codeDialectsInvalid, a.invalid) }

// inMesh returns the states of the pods that have rules of their own, or that the node's proxy has or is to have.
func (a *Agent) inMesh() []status.Pod { return onePer(a.held.pods(), a.repairs.pods()) }

// pods returns the states of all pods that the agent knows.
func (a *Agent) pods() []status.Pod {
	lists := [][]status.Pod{slices.Concat(a.held.pods(), a.left.states()), a.repairs.pods()}
	if a.install != nil {
		lists = append(lists, failing(a.install.State().Failing, a.sock.podsOf))
	}
	all, full := onePer(lists...), a.full.percent()
	for i, p := range all {
		all[i].ConntrackPercent = full[p.ID]
	}
	return all
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
	return news.Err(a.list())
}

// passed says that new pods of the mesh are to be expected to start past the plugin although it is in place.
func (a *Agent) passed() []status.News {
	if a.install == nil || a.options.Config.Alone {
		return nil
	}
	return a.past.why(time.Now(), a.installed(), a.install.State().PutBack, a.repairs.pods(), a.sock.podByUID)
}

// whyRefused returns why changed settings are refused; empty: they are not.
func (a *Agent) whyRefused() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused
}

// Status returns the state of the node: whether it is ready, what people should know, and the state of each of its pods in the mesh.
func (a *Agent) Status() Status {
	now := Status{Time: time.Now(), Node: a.options.Config.Node, Alone: a.options.Config.Alone, News: a.report.News(), Pods: a.pods()}
	now.Ready = news.Err(now.News) == nil
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
		options: a.options, settings: a.repairs.acting, auto: a.options.Config.AutoEvict, status: a.Status,
		pods: a.sock.podsOf, podByUID: a.sock.podByUID, binDirs: func() []installer.BinDir { return nil }, ownToken: func() bool { return false }, kernel: a.kernel, hook: a.hook,
		looks: &recent.Values[agentapi.Pod]{},
	}
	if a.install != nil {
		n.binDirs = func() []installer.BinDir { return a.install.State().BinDirs }
		n.ownToken = func() bool { return a.install.State().OwnToken }
	}
	return n
}
