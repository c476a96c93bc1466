//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// features finds out what the kernel has, by making rules that need it in an empty network namespace, as the plugin makes them in a
// pod's. It does so once for each backend and once for each mix of meshes, when it is first asked, and again if something was
// missing. Nothing of the node's own network changes; the kernel loads its modules, as it does for the first pod. The zero value
// is ready.
type features struct {
	mu    sync.Mutex
	tried string
	known []agentapi.Feature
	again time.Time // when something that was missing is tried again; zero: nothing was
}

// featuresTimeout bounds the attempts, for which programs may run.
const featuresTimeout = 10 * time.Second

// missingFor bounds the time for which a feature counts as missing. A module may be loaded since, or a program have failed only once.
const missingFor = time.Minute

// of returns what is known of the kernel.
func (f *features) of(ctx context.Context, backend apply.Options, sidecars, nodeProxies bool) []agentapi.Feature {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := fmt.Sprint(backend.Backend, backend.Root, sidecars, nodeProxies)
	if key != f.tried || !f.again.IsZero() && time.Now().After(f.again) {
		ctx, cancel := context.WithTimeoutCause(ctx, featuresTimeout, errors.New("it took too long"))
		defer cancel()
		f.known = f.look(ctx, backend, sidecars, nodeProxies)
		f.tried, f.again = key, time.Time{}
		if slices.ContainsFunc(f.known, func(x agentapi.Feature) bool { return x.Has == agentapi.No && x.Name != agentapi.IPv6 }) {
			f.again = time.Now().Add(missingFor)
		}
		if ctx.Err() != nil {
			f.tried = "" // at once
		}
	}
	return slices.Clone(f.known)
}

func (f *features) look(ctx context.Context, backend apply.Options, sidecars, nodeProxies bool) []agentapi.Feature {
	ipv6 := hasIPv6()
	all := []agentapi.Feature{ipv6}
	for _, t := range trials {
		if t.name == agentapi.NodeProxy && !nodeProxies || t.name != agentapi.NodeProxy && !sidecars || t.name == agentapi.RedirectionIPv6 && ipv6.Has == agentapi.No {
			continue
		}
		all = append(all, f.try(ctx, backend, t))
	}
	return all
}

// hasIPv6 says whether the namespace of the process, which is the node's unless the agent has a network of its own, has the protocol.
func hasIPv6() agentapi.Feature {
	found := agentapi.Feature{Name: agentapi.IPv6, Has: agentapi.Unknown}
	own, err := netnsexec.Current()
	if err == nil {
		defer func() { _ = own.Close() }()
		var k redirect.Kernel
		if k, err = apply.Kernel(own); err == nil {
			found.Has = agentapi.Yes
			if k.IPv6 != redirect.PresenceUsable {
				found.Has, found.Detail = agentapi.No, "IPv6 is "+string(k.IPv6)
			}
			return found
		}
	}
	found.Detail = err.Error()
	return found
}

// trial is rules that need a feature.
type trial struct {
	name  agentapi.FeatureName
	rules func(*redirect.Redirect) // from those of IPv4 by default
}

var trials = []trial{
	{agentapi.Redirection, func(*redirect.Redirect) {}},
	{agentapi.RedirectionIPv6, func(r *redirect.Redirect) { r.IPv4, r.IPv6 = redirect.FamilyPass, redirect.FamilyCapture }},
	{agentapi.TProxy, func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }},
	{agentapi.DNSZones, func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053} }},
	{agentapi.NodeProxy, func(r *redirect.Redirect) {
		r.Proxy.UIDs, r.Proxy.Mark, r.Loopback = nil, redirect.Mark{Value: 0x539, Mask: 0xfff}, redirect.LoopbackPass
		r.Names.InboundMark, r.Names.MarkMask = 0x111, 0xfff
	}},
}

func (f *features) try(ctx context.Context, o apply.Options, t trial) agentapi.Feature {
	found := agentapi.Feature{Name: t.name, Has: agentapi.Unknown}
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	t.rules(&r)
	used, err := f.applied(ctx, o, r)
	found.Backend = used
	switch {
	case err == nil:
		found.Has = agentapi.Yes
		return found
	case used != "" && ctx.Err() == nil && !errors.Is(err, fs.ErrPermission):
		found.Has = agentapi.No
	}
	found.Detail = strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	return found
}

// applied makes the rules in a namespace that ends with it. The backend is empty if none was reached.
func (f *features) applied(ctx context.Context, o apply.Options, r redirect.Redirect) (backend string, err error) {
	rules, err := r.Ruleset()
	if err != nil {
		return "", err
	}
	if o.Root == "" && o.Backend != ruleset.BackendNftables {
		return "", errors.New("the agent does not see the host's programs, which write the rules (--repair-host-root)")
	}
	ns, err := netnsexec.New()
	if err != nil {
		return "", err
	}
	defer func() { _ = ns.Close() }()
	b, err := apply.Choose(ctx, ns, o)
	if err != nil {
		return "", err
	}
	_, err = b.Apply(ctx, rules)
	return string(b.Name()), err
}

// features lists the kernel features that the rules of the plugin's pods need.
func (n nodeAPI) features(s Config, plugin netconf.Config) []agentapi.Feature {
	sidecars, nodeProxies := false, false
	for _, d := range n.options.Dialects {
		if slices.Contains(plugin.Dialects, d.Name) {
			sidecars, nodeProxies = sidecars || d.NodeProxy == nil, nodeProxies || d.NodeProxy != nil
		}
	}
	return n.kernel.of(context.Background(), apply.Options{Backend: ruleset.Backend(plugin.Backend), Root: s.HostRoot}, sidecars, nodeProxies)
}
