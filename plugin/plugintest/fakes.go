package plugintest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Pods is a source of pods in memory, with the API machinery's errors for what is not there. Open returns it as
// plugin.Pods. The zero value has no pod. Its methods are safe for concurrent use;
// set the fields before the first call.
//
// It has no credentials, speaks no protocol and is never slow by itself.
type Pods struct {
	// Hook, if set, sees each call before it is answered; n counts from 1. An error that it returns is the answer.
	Hook func(ctx context.Context, n int) error
	// Permanent says that no error is worth another try.
	Permanent bool
	// NotReady is what Ready returns.
	NotReady error

	mu         sync.Mutex
	pods       map[string]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	calls      int
}

// NewPods returns a source with the pods, and with a namespace for each.
func NewPods(pods ...*corev1.Pod) *Pods {
	p := &Pods{pods: map[string]*corev1.Pod{}, namespaces: map[string]*corev1.Namespace{}}
	for _, pod := range pods {
		p.Set(pod)
		p.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}})
	}
	return p
}

// Open is for plugin.Plugin.OpenPods: it returns p for any kubeconfig. What it returns cannot patch.
func (p *Pods) Open(string) (plugin.Pods, error) {
	return plugin.Pods{
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return get(ctx, p, p.pods, "pods", namespace+"/"+name)
		},
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return get(ctx, p, p.namespaces, "namespaces", name)
		},
		Transient: func(error) bool { return !p.Permanent },
		Ready:     func(context.Context) error { return p.NotReady },
	}, nil
}

// Set stores a copy of the pod. p must be from [NewPods].
func (p *Pods) Set(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[pod.Namespace+"/"+pod.Name] = pod.DeepCopy()
}

// SetNamespace stores a copy of the namespace. p must be from [NewPods].
func (p *Pods) SetNamespace(ns *corev1.Namespace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.namespaces[ns.Name] = ns.DeepCopy()
}

// Calls is how many requests a real source would have made.
func (p *Pods) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

func get[O interface{ DeepCopy() O }](ctx context.Context, p *Pods, objects map[string]O, resource, key string) (none O, err error) {
	p.mu.Lock()
	p.calls++
	n := p.calls
	p.mu.Unlock()
	if p.Hook != nil {
		err = p.Hook(ctx, n)
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return none, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if o, ok := objects[key]; ok {
		return o.DeepCopy(), nil
	}
	return none, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, path.Base(key))
}

// NetNS is a network namespace in memory and the backend that programs it.
// The zero value is a new namespace without addresses, whose kernel has both families in use. Set the fields before the
// first call, and read them after the last.
//
// It knows no rules of others, no packets and no time. Package netnstest makes real namespaces.
type NetNS struct {
	// Addresses are those of its interfaces.
	Addresses []netip.Addr
	// Families are what its kernel has. Default: both usable, except those in Skip.
	Families redirect.Kernel
	// The errors that the calls return.
	OpenErr, BackendErr, KernelErr, AddrsErr, ApplyErr, CheckErr error
	// Applying, if set, runs before an Apply takes effect.
	Applying func(context.Context)
	// Skip are families that its kernel lacks.
	Skip []ruleset.Family
	// Unusable is what it does not accept beside the rules.
	Unusable []apply.Unusable
	// Past are the ways past all rules that its packets have.
	Past []dialect.Bypass
	// Inode tells it from other namespaces.
	Inode uint64

	mu sync.Mutex
	// Live are the rules in force.
	Live ruleset.Ruleset
	// Asked is the backend that was asked for last.
	Asked ruleset.Backend
	// Opened, Closed, Applied and Checked count calls.
	Opened, Closed, Applied, Checked int
}

// Open is for plugin.Plugin.OpenNetNS: it returns n whatever the path.
func (n *NetNS) Open(string) (plugin.NetNS, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.OpenErr != nil {
		return nil, n.OpenErr
	}
	n.Opened++
	return openNetNS{n}, nil
}

// openNetNS implements plugin.NetNS and plugin.Backend.
type openNetNS struct{ *NetNS }

// Backend implements plugin.NetNS.
func (n openNetNS) Backend(_ context.Context, name ruleset.Backend) (plugin.Backend, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Asked = name
	if n.BackendErr != nil {
		return nil, n.BackendErr
	}
	return n, nil
}

// ID implements plugin.NetNS.
func (n openNetNS) ID() netnsexec.ID { return netnsexec.ID{Dev: 1, Ino: n.Inode + 1} }

// Bypasses implements plugin.NetNS.
func (n openNetNS) Bypasses([]netip.Addr) ([]dialect.Bypass, error) { return n.Past, nil }

// Kernel implements plugin.NetNS.
func (n openNetNS) Kernel() (redirect.Kernel, error) {
	if n.KernelErr != nil || n.Families != (redirect.Kernel{}) {
		return n.Families, n.KernelErr
	}
	presence := func(f ruleset.Family) redirect.Presence {
		if slices.Contains(n.Skip, f) {
			return redirect.PresenceAbsent
		}
		return redirect.PresenceUsable
	}
	return redirect.Kernel{IPv4: presence(ruleset.IPv4), IPv6: presence(ruleset.IPv6)}, nil
}

// Addrs implements plugin.NetNS.
func (n openNetNS) Addrs(string) ([]netip.Addr, error) { return n.Addresses, n.AddrsErr }

// Close implements plugin.NetNS.
func (n openNetNS) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Closed++
	return nil
}

// Name implements plugin.Backend.
func (n openNetNS) Name() ruleset.Backend { return "fake" }

// Apply implements plugin.Backend.
func (n openNetNS) Apply(ctx context.Context, rs ruleset.Ruleset) (apply.Result, error) {
	if n.Applying != nil {
		n.Applying(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Applied++
	if n.ApplyErr != nil {
		return apply.Result{}, n.ApplyErr
	}
	if err := ctx.Err(); err != nil {
		return apply.Result{}, fmt.Errorf("apply rules: %w", err)
	}
	if err := rs.Validate(); err != nil {
		return apply.Result{}, err
	}
	changed := !n.Live.Equal(rs)
	n.Live = rs
	return apply.Result{Backend: "fake", Changed: changed, Skipped: n.Skip, Unusable: n.Unusable}, nil
}

// Check implements plugin.Backend, by the text of the rules.
func (n openNetNS) Check(_ context.Context, rs ruleset.Ruleset) ([]ruleset.Difference, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Checked++
	if n.CheckErr != nil {
		return nil, n.CheckErr
	}
	if err := rs.Validate(); err != nil {
		return nil, err
	}
	var diffs []ruleset.Difference
	for _, f := range ruleset.Families {
		want, live := rs.Family(f), n.Live.Family(f)
		if want == nil {
			continue
		}
		var saved ruleset.LiveChains
		if live != nil {
			var err error
			if saved, err = ruleset.Parse(f, live.String()); err != nil {
				return nil, fmt.Errorf("check rules: %w", err)
			}
		}
		diffs = append(diffs, want.Diff(saved)...)
	}
	return diffs, nil
}

// SyscallConn makes n something that can be handed to an agent. It has no descriptor.
func (n openNetNS) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }
