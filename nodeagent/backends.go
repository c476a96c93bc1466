//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// tried keeps what the backends can do on this host. They are tried when the agent starts, when its settings, the host's programs or modules
// change, and again while something is missing. Nothing of the node's own network changes; the kernel loads its modules, as it does for the first
// pod.
type tried struct {
	options Options
	present func() Config
	usable  *prometheus.Desc

	trying sync.Mutex // one attempt at a time
	mu     sync.Mutex
	key    string
	want   ruleset.Backend
	found  backends.Found // nil: nothing has been tried yet
	blind  string         // what the look at files says, where nothing could be tried
	again  time.Time      // when what was missing is tried again; zero: nothing was
}

const (
	// tryTimeout bounds the attempts, for which programs may run.
	tryTimeout = 20 * time.Second
	// tryEvery is the interval at which it is looked whether something has changed.
	tryEvery = 2 * time.Second
	// missingFor bounds the time for which something counts as missing. A module may be loaded since, or a program have failed only once.
	missingFor = time.Minute
)

func (o Options) newTried(present func() Config) *tried {
	return &tried{options: o, present: present, usable: prometheus.NewDesc(o.Config.Identity.Metric("backend_usable"),
		"1: the backend has written pods' rules in an empty network namespace of this host; 0: it has refused them. One that cannot be tried is missing.", []string{"backend"}, nil)}
}

// run keeps what is known until the context ends. acts reports whether the plugin is to be told.
func (f *tried) run(ctx context.Context, acts func() bool) error {
	said, wrote := "", ""
	for ctx.Err() == nil {
		f.update(ctx)
		now := ""
		if err := f.why(); err != nil {
			now = err.Error()
		}
		if now != said && now != "" && ctx.Err() == nil {
			f.options.Log.Error("pods of the mesh cannot start", "error", now)
		}
		said = now
		if acts() {
			wrote = f.tell(wrote)
		}
		select {
		case <-ctx.Done():
		case <-time.After(tryEvery):
		}
	}
	return nil
}

// tell writes for the plugin what has been found out, if it is news.
func (f *tried) tell(wrote string) string {
	f.mu.Lock()
	found, want := f.found, f.want
	f.mu.Unlock()
	dir := f.present().RunDir
	news := fmt.Sprint(dir, want, found.Known(want), found.Broken(want))
	if news == wrote {
		return wrote
	}
	err := backends.Forget(dir)
	if found.Known(want) {
		err = found.Write(dir, want)
	}
	if err != nil {
		f.options.Log.Warn("the plugin is not told which backends work", "error", err)
		return wrote
	}
	return news
}

// update tries the backends if something has changed.
func (f *tried) update(ctx context.Context) {
	f.trying.Lock()
	defer f.trying.Unlock()
	c := f.present()
	plugin := c.Effective()
	root, blind := c.programs()
	key := fmt.Sprint(plugin.Backend, root, plugin.Dialects, plugin.Meshes, programsAt(root))
	f.mu.Lock()
	same := f.found != nil && key == f.key && (f.again.IsZero() || time.Now().Before(f.again))
	f.mu.Unlock()
	if same {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tryTimeout, errors.New("it took too long"))
	defer cancel()
	want := ruleset.Backend(plugin.Backend)
	found := backends.Try(ctx, apply.Options{Backend: want, Root: root}, blind, f.trials(c))
	if errors.Is(ctx.Err(), context.Canceled) {
		return // it ends
	}
	seen := ""
	if !found.Known(want) && c.HostRoot != "" { // without the host's root the programs of the host are not to be seen
		if err := apply.Available(apply.Options{Backend: want, Root: root}); err != nil {
			seen = err.Error()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.key, f.want, f.found, f.blind, f.again = key, want, found, seen, time.Time{}
	first := found.First(want)
	lacks := first == nil
	if first != nil {
		for name := range first.Refused {
			lacks = lacks || name != trialIPv6 || hasIPv6()
		}
	}
	if lacks || !found.Known(want) || len(found.Broken(want)) > 0 {
		f.again = time.Now().Add(missingFor)
	}
}

// programs returns the root directory of the host's programs, or why it is not known.
func (c Config) programs() (root string, blind error) {
	inContainer := func(dir string) bool { return hostpath.OnHost(dir) != dir }
	switch {
	case c.HostRoot != "":
		return c.HostRoot, nil
	case c.Alone: // this process makes the rules
		return "", nil
	case slices.ContainsFunc(c.CNIBinDirs, inContainer), c.InstalledElsewhere:
		return "", errors.New("the agent does not see the host's programs (--repair-host-root)")
	}
	return "", nil
}

// programsAt describes the files that decide about the programs and modules of the root, so that a change of them is seen.
func programsAt(root string) (stamps string) {
	dirs := append(filepath.SplitList(apply.DefaultPath), "/etc/alternatives", "/etc/modprobe.d", "/lib/modules/"+kernelRelease())
	for _, dir := range dirs {
		for _, name := range []string{"", "iptables", "ip6tables", "iptables-nft", "ip6tables-nft", "iptables-legacy", "xtables-nft-multi", "xtables-legacy-multi"} {
			if st, err := os.Stat(filepath.Join(root+dir, name)); err == nil {
				stamps += fmt.Sprint(dir, name, st.ModTime().UnixNano(), st.Size(), ";")
			}
		}
	}
	return stamps
}

// News says that no new pod of the mesh could start.
func (f *tried) News() []status.News { return news.NotReady(codeNoBackend, f.why()) }

// why returns an error if no backend takes pods' rules.
func (f *tried) why() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.found.Err(f.want)
	if f.found == nil {
		err = errors.New("the backends have not been tried yet")
	} else if err == nil && f.blind != "" {
		err = errors.New(f.blind)
	}
	return err
}

// used returns the backend that an empty namespace gets; empty: not known.
func (f *tried) used(ctx context.Context) ruleset.Backend {
	f.mu.Lock()
	never := f.found == nil
	f.mu.Unlock()
	if never { // the agent does not run yet
		f.update(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if first := f.found.First(f.want); first != nil && first.Unknown == nil {
		return first.Backend
	}
	return ""
}

// Describe implements [prometheus.Collector].
func (f *tried) Describe(ch chan<- *prometheus.Desc) { ch <- f.usable }

// Collect implements [prometheus.Collector].
func (f *tried) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.found {
		if x.Unknown != nil || x.Absent != nil {
			continue
		}
		usable := 1.0
		if x.Useless {
			usable = 0
		}
		ch <- prometheus.MustNewConstMetric(f.usable, prometheus.GaugeValue, usable, string(x.Backend))
	}
}

// trialIPv6 is the trial that a node without the protocol cannot pass.
const trialIPv6 = "redirect-ipv6"

// hasIPv6 reports whether the kernel has the protocol.
func hasIPv6() bool {
	_, err := os.Stat("/proc/thread-self/net/if_inet6")
	return err == nil
}

// trials are rulesets with all that the rules of the plugin's pods need: those of each mesh's pod without settings, and those that
// settings can ask for.
func (f *tried) trials(c Config) []backends.Trial {
	meshes, err := dialect.Configure(f.options.Dialects, c.Effective())
	if err != nil || f.options.invalid != nil {
		return nil
	}
	change := func(change func(*redirect.Redirect)) []redirect.Redirect {
		r := redirect.Default()
		r.IPv6 = redirect.FamilyPass
		change(&r)
		return []redirect.Redirect{r}
	}
	var sidecars, nodeProxies []redirect.Redirect
	for d := range meshes.All() {
		into, r := &sidecars, backends.Sidecars(ruleset.IPv4)
		if d.NodeProxy != nil {
			into, r = &nodeProxies, change(func(r *redirect.Redirect) {
				r.Proxy.UIDs, r.Proxy.Mark, r.Loopback = nil, redirect.Mark{Value: 0x539, Mask: 0xfff}, redirect.LoopbackPass
				r.Names.InboundMark, r.Names.MarkMask = 0x111, 0xfff
			})[0]
		}
		if len(*into) == 0 {
			*into = append(*into, r)
		}
		// What the mesh captures by default, where a pod needs no settings.
		if read, err := d.Redirect(&corev1.Pod{}, &corev1.Namespace{}, nil); err == nil {
			read.Redirect.IPv4, read.Redirect.IPv6 = redirect.FamilyCapture, redirect.FamilyPass
			*into = append(*into, read.Redirect)
		}
	}
	var all []backends.Trial
	if len(sidecars) > 0 {
		all = append(all,
			backends.Trial{Name: "redirect", Needed: true, Redirects: sidecars},
			backends.Trial{Name: trialIPv6, Redirects: []redirect.Redirect{backends.Sidecars(ruleset.IPv6)}},
			backends.Trial{Name: "tproxy", Redirects: change(func(r *redirect.Redirect) { r.Mode, r.DropInvalid = redirect.ModeTProxy, true })},
			backends.Trial{Name: "dns-zones", Redirects: change(func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053} })})
	}
	if len(nodeProxies) > 0 {
		all = append(all, backends.Trial{Name: "node-proxy", Needed: true, Redirects: nodeProxies})
	}
	return all
}
