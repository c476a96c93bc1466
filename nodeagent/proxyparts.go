//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// hostNetNS is the host's network namespace, as a process sees it that shares the host's processes.
const hostNetNS = "/proc/1/ns/net"

// ackTimeout bounds a proxy's answer: less than the 5 s after which an ADD must have failed at a proxy that is
// silent (Istio's plugin waits that long), by what the plugin and the undoing take.
const ackTimeout = 4 * time.Second

// retainEvery is the interval at which the journal is rid of pods that are gone.
const retainEvery = time.Minute

// ambientOpener makes the controller of the node's proxy and what it works on.
func ambientOpener(with func() *ambientParts) func(context.Context) (holder, func(context.Context) error, error) {
	return func(ctx context.Context) (holder, func(context.Context) error, error) {
		parts := with()
		parts.using.Store(2)
		c, err := parts.open(ctx)
		if err != nil {
			return nil, nil, errors.Join(err, parts.close())
		}
		return ending{c, parts}, parts.run, nil
	}
}

// ambientParts are a controller and what it works on.
type ambientParts struct {
	options  Options
	settings Config
	log      *slog.Logger
	pods     nodecontrol.Pods // as the one watch of the agent has them
	keeper   *keeper.Keeper   // that of the agent; nil: there is none
	events   nodeevents.Recorder
	giving   bool // to another agent

	controller *nodecontrol.Controller
	store      *netnsstore.Store
	server     *zds.Server // nil: there is another proxy
	probes     *probes.Set // nil: no mesh knows its probes by an address
	host       *netnsexec.NetNS
	using      atomic.Int32 // the controller, and what runs beside it
}

// leave closes everything once nobody uses it.
func (a *ambientParts) leave() error {
	if a.using.Add(-1) > 0 {
		return nil
	}
	return a.close()
}

// ending is a controller that leaves when it has ended.
type ending struct {
	*nodecontrol.Controller

	parts *ambientParts
}

// Run is that of the controller.
func (e ending) Run(ctx context.Context) error {
	return errors.Join(e.Controller.Run(ctx), e.parts.leave())
}

// News is the controller's, and that of the store.
func (e ending) News() []status.News {
	all := e.Controller.News()
	if err := e.parts.store.Journal(); err != nil {
		journal := news.New(status.KindFinding, news.Ambient, "a restart will have to find network namespaces anew: "+err.Error())
		journal.Where = "journal"
		all = append(all, journal)
	}
	return all
}

// open makes the parts. What fails can be tried again.
func (a *ambientParts) open(ctx context.Context) (*nodecontrol.Controller, error) {
	s := a.settings
	plugin := s.Effective()
	meshes, err := a.options.meshes(s)
	if err != nil {
		return nil, err
	}
	client, err := a.options.client(s)
	if err != nil {
		return nil, err
	}
	o := nodecontrol.Options{
		Identity: s.Identity,
		Meshes:   meshes,
		Apply:    apply.Options{Backend: ruleset.Backend(plugin.Backend), Root: s.HostRoot},
		Pods:     a.pods, Keeper: a.keeper, Proxy: a.options.Proxy, Events: a.events, Inventory: a.options.inventory(s), Status: client, Log: a.log,
		VerifyInterval: time.Duration(s.Ambient.VerifyInterval), DrainTimeout: s.Ambient.drainTimeout(), DrainMinimum: s.Ambient.DrainMinimum,
	}
	a.store = netnsstore.New(netnsstore.Options{
		RunDir: s.RunDir, Inventory: o.Inventory, HostRoot: s.HostRoot, ProcRoot: s.ProcRoot, Log: a.log,
	})
	o.Namespaces = nodecontrol.Store{Store: a.store}
	if err := a.exempt(ctx, meshes); err != nil {
		return nil, err
	}
	if a.probes != nil {
		o.Probes = a.probes
	}
	if o.Proxy == nil {
		a.server, err = zds.Listen(ctx, zds.Options{
			Path: s.Ambient.ZDSSocket, AckTimeout: ackTimeout, Log: a.log, Snapshot: func(ctx context.Context) ([]nodeproxy.Workload, error) { return a.controller.Snapshot(ctx) },
			OnChange: func() { a.controller.ProxyChanged() },
		})
		if err != nil {
			return nil, err
		}
		o.Proxy, o.Connected = a.server, func() int { return len(a.server.Proxies()) }
	}
	if a.controller, err = nodecontrol.New(o); err != nil {
		return nil, err
	}
	if a.giving {
		return a.controller, nil
	}
	// Whoever released the pods to another agent has restarted this one to have them again.
	return a.controller, handedOver{}.write(s.RunDir)
}

// exempt sets up the exemption of the host's probes, if a mesh knows them by an address, and takes over what another agent has.
func (a *ambientParts) exempt(ctx context.Context, meshes dialect.Set) error {
	var err error
	if a.probes, a.host, err = a.settings.probeSet(slices.Collect(meshes.All())); err != nil || a.probes == nil {
		return err
	}
	took, err := a.probes.TakeOver(ctx)
	if err == nil && took.Added > 0 {
		a.log.Info("the exemption of probes that another agent had set up is ours now", "entries", took.Added)
	}
	return err
}

// probeSet returns the exemption of the host's probes, and the host's namespace, which the caller closes. It is nil if no mesh knows
// probes by an address.
func (s Config) probeSet(meshes []dialect.Dialect) (*probes.Set, *netnsexec.NetNS, error) {
	var o probes.Options
	for _, d := range meshes {
		if d.NodeProxy != nil {
			o.IPv4, o.IPv6 = sources(d.NodeProxy.ProbeSources)
			break
		}
	}
	if !o.IPv4.IsValid() && !o.IPv6.IsValid() {
		return nil, nil, nil
	}
	host, err := netnsexec.OpenHost(hostNetNS)
	if err != nil {
		return nil, nil, fmt.Errorf("exempt the host's probes: %w", err)
	}
	o.NetNS, o.Table = host, s.Identity.Program("probes")
	set, err := probes.New(o)
	return set, host, err
}

// sources returns the address of each family.
func sources(set redirect.PrefixSet) (ipv4, ipv6 netip.Addr) {
	for family, to := range map[ruleset.Family]*netip.Addr{ruleset.IPv4: &ipv4, ruleset.IPv6: &ipv6} {
		if prefixes := set.Family(family); len(prefixes) > 0 {
			*to = prefixes[0].Addr()
		}
	}
	return ipv4, ipv6
}

// run does what goes on beside the controller until the context ends.
func (a *ambientParts) run(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	if a.server != nil {
		all.Go(func() error { return a.server.Run(ctx) })
	}
	all.Go(func() error { return a.tend(ctx) })
	return errors.Join(all.Wait(), a.leave())
}

// tend sees to it that what the host has is as it should be, and that nothing is kept of pods that are gone.
func (a *ambientParts) tend(ctx context.Context) error {
	mend := time.NewTicker(time.Duration(a.settings.Ambient.VerifyInterval))
	defer mend.Stop()
	retain := time.NewTicker(retainEvery)
	defer retain.Stop()
	for {
		if a.probes != nil {
			if done, err := a.probes.Ensure(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("the host's probes of captured pods may fail", "error", err)
			} else if done.Repaired {
				a.log.Info("the exemption of the host's probes is set up", "entries", done.Entries)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-mend.C:
		case <-retain.C:
			a.retain()
		}
	}
}

// retain forgets the namespaces of pods that do not exist.
func (a *ambientParts) retain() {
	if !a.pods.Synced() {
		return
	}
	// Each pod is asked for when it is its turn: one that has just been attached is not among those of a moment ago.
	if err := a.store.Retain(func(uid types.UID) bool { return a.pods.ByUID(uid) != nil }); err != nil {
		a.log.Warn("network namespaces of pods that are gone cannot be given up", "error", err)
	}
}

func (a *ambientParts) close() error {
	var errs []error
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.host != nil {
		errs = append(errs, a.host.Close())
	}
	return errors.Join(errs...)
}
