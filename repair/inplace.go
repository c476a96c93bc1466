package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// The reasons for which [InPlace] neither compares nor writes a pod's rules. Check with errors.Is(err, repair.ErrNoProcess), and so on.
var (
	// ErrNoProcess: neither the records, nor the runtime, nor a running process of the pod leads to its network namespace. Retrying may help.
	ErrNoProcess = netnsstore.ErrNoProcess

	// ErrVariant: iptables made the pod's rules, and its programs are missing here. Options.HostRoot is the root of a host that has them.
	ErrVariant = podrules.ErrVariant

	// ErrNotSelected: the mesh's policy passes the pod over, so it should have no rules.
	ErrNotSelected = errors.New("the pod is not in the mesh")

	// ErrNodeProxy: the pod's proxy is on the node, so the agent that hands the pod to it sees to its rules.
	ErrNodeProxy = errors.New("the pod is left to the agent of the node's proxy")

	// ErrRefused: the plugin would not start the pod, for the reason that is wrapped.
	ErrRefused = errors.New("the plugin refuses the pod")
)

// InPlace compares and writes the rules of running pods, each in its network namespace, as the plugin would have them: for the [Controller], and
// for one of your own. Meshes are required, and so is Namespace if one of them may read it. It is safe for concurrent use.
type InPlace struct {
	// Meshes are the node's, as the plugin is configured: pods that it refuses are refused here too.
	Meshes dialect.Set
	// Backend is the firewall backend. Zero means auto.
	Backend ruleset.Backend
	// Path lists the directories in which iptables is looked for. Empty means [apply.DefaultPath].
	Path string
	// HostRoot is the root directory to run iptables in, such as that of the host, where the plugin runs. Empty means our
	// own. See Root of [apply.Options].
	HostRoot string
	// ProcRoot is a proc file system that shows the pods' processes. Empty means /proc.
	ProcRoot string
	// Namespace reads a namespace. Its labels and annotations are cached for a minute.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// Records are the plugin's records on this node, plugin.Records, which Apply updates for the plugin's CHECK. The zero Store has none.
	Records attachment.Store
	// Network returns the attachment by which the pod got its present network, and the path of its network namespace as the
	// runtime names it. Apply leaves a record for it if a pod has none. nil, or an ID without a container, means that it is
	// not known; the pod then stays without.
	Network func(pod *corev1.Pod) (id attachment.ID, netns string)
	// Log receives problems that do not stop a repair. nil discards them.
	Log *slog.Logger

	inventory *inventory.Inventory               // nil: of Records
	judged    func(*corev1.Pod) *judge.Judgement // nil: it judges itself

	once       sync.Once
	namespaces *cache.LRUExpireCache // by name
	netns      *netnsstore.Store
}

const (
	// maxCached bounds the cache. A node has fewer namespaces with pods.
	maxCached = 1024
	// namespaceAge bounds the time for which a namespace is cached.
	namespaceAge = time.Minute
)

func (m *InPlace) init() {
	m.once.Do(func() {
		if m.inventory == nil {
			m.inventory = inventory.New(inventory.Options{Records: m.Records})
		}
		m.namespaces = cache.NewLRUExpireCache(maxCached)
		m.netns = netnsstore.New(netnsstore.Options{Inventory: m.inventory, HostRoot: m.HostRoot, ProcRoot: m.ProcRoot, Fleeting: true})
	})
}

// namespace reads a namespace, or has read it of late.
func (m *InPlace) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	if m.Namespace == nil {
		return nil, errors.New("read namespace " + name + ": nothing here can")
	}
	m.init()
	if cached, ok := m.namespaces.Get(name); ok {
		return cached.(*corev1.Namespace), nil
	}
	ns, err := m.Namespace(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read namespace %s: %w", name, err)
	}
	m.namespaces.Add(name, ns, namespaceAge)
	return ns, nil
}

// judgement returns what the meshes say of a pod.
func (m *InPlace) judgement(ctx context.Context, pod *corev1.Pod) *judge.Judgement {
	if m.judged != nil {
		return m.judged(pod)
	}
	var namespace *corev1.Namespace
	var err error
	judges := judge.New(m.Meshes)
	if judges.NeedsNamespace(pod) {
		namespace, err = m.namespace(ctx, pod.Namespace)
	}
	return judges.Pod(pod, namespace, err)
}

// Check returns how the rules of a running pod differ from those that the plugin would write; none: they are there. Errors include
// [ErrNotSelected], [ErrNodeProxy], [ErrRefused], [ErrNoProcess] and [ErrVariant], and a [*dialect.BypassError] for a way that its packets
// have past all rules.
func (m *InPlace) Check(ctx context.Context, pod *corev1.Pod) (diffs []ruleset.Difference, err error) {
	err = m.in(ctx, pod, func(b apply.Backend, ns *netnsexec.NetNS, w wanted) (err error) {
		open, unknown := bypass.Told(bypass.Live(ns, w.addrs))
		if len(open) > 0 { // then nothing comes to the rules, whatever they are
			return &dialect.BypassError{Bypass: open[0]}
		}
		if diffs, err = podrules.Differences(ctx, b, m.unusable(pod, ns.ID()), w.rules...); err != nil {
			err = fmt.Errorf("check rules of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		diffs = append(diffs, unknown...)
		return err
	})
	return diffs, err
}

// unusable returns the routing that the pod's namespace did not take when its rules were written, by the records.
func (m *InPlace) unusable(pod *corev1.Pod, netns netnsexec.ID) (what []string) {
	records, _ := m.inventory.Records(func(r inventory.Row) bool { return r.Pod.UID == string(pod.UID) && r.NetNS.Is(netns) })
	for _, r := range records {
		what = append(what, r.Unusable...)
	}
	return what
}

// Apply writes the rules that the plugin would write, and updates the records. Errors are those of Check. After one, the
// rules are as they were, unless it says otherwise.
func (m *InPlace) Apply(ctx context.Context, pod *corev1.Pod) (result apply.Result, err error) {
	err = m.in(ctx, pod, func(b apply.Backend, ns *netnsexec.NetNS, w wanted) error {
		if result, err = b.Apply(ctx, w.rules[0]); err != nil {
			return fmt.Errorf("apply rules of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		m.record(pod, ns.ID(), w, result)
		return nil
	})
	return result, err
}

// record updates the plugin's records of the pod, so that CHECK compares the pod with what is in force now. A pod that
// started without the plugin has none: it gets one if its attachment is known, and otherwise CHECK passes.
func (m *InPlace) record(pod *corev1.Pod, netns netnsexec.ID, w wanted, result apply.Result) {
	const writer = "repair"
	set := func(r *attachment.Record) bool { return podrules.Note(r, w.mesh.Name, w.rules[0], result) }
	recorded, unread, err := m.inventory.Change(string(pod.UID), netns, writer, set)
	if err = errors.Join(unread, err); !recorded && err == nil && m.Network != nil {
		if id, path := m.Network(pod); id.ContainerID != "" {
			r := attachment.Record{
				ID: id, NetNS: attachment.NetNS{Path: path, Dev: netns.Dev, Ino: netns.Ino},
				Pod: status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
			}
			set(&r)
			err = m.inventory.Write(r, writer)
		}
	}
	if err != nil && m.Log != nil {
		// The rules are in force, which is what counts. CHECK passes a pod whose record could not be written.
		m.Log.Warn("cannot update the plugin's record of a repaired pod",
			"namespace", pod.Namespace, "pod", pod.Name, "uid", string(pod.UID), "error", err.Error())
	}
}

// in calls fn with the backend for the pod's network namespace and the rulesets that are acceptable there.
func (m *InPlace) in(ctx context.Context, pod *corev1.Pod, fn func(apply.Backend, *netnsexec.NetNS, wanted) error) (err error) {
	w, err := m.wanted(ctx, pod)
	if err != nil {
		return err
	}
	if w.mesh.NodeProxy != nil {
		return fmt.Errorf("%w: dialect %s has it", ErrNodeProxy, w.mesh.Name)
	}
	m.init()
	ref, err := m.netns.Find(ctx, netnsstore.Pod{UID: pod.UID, Addrs: w.addrs, OwnUsers: podid.OwnUsers(pod)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.Close()) }()
	ns := ref.NetNS()
	b, err := podrules.Choose(ctx, ns, w.mesh.Names.Owner(), apply.Options{Backend: m.Backend, Runner: ns.Sandbox(), Path: m.Path, Root: m.HostRoot})
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return fn(b, ns, w)
}

// podAddrs returns the pod's addresses, the primary one first.
func podAddrs(pod *corev1.Pod) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, fmt.Errorf("address of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		addrs = append(addrs, a)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no address", pod.Namespace, pod.Name)
	}
	return addrs, nil
}

// Rulesets returns the rulesets that are acceptable for the pod; Apply writes the first. There are two where the order of
// the addresses matters: the kubelet puts the node's family first in a pod's status, and the plugin uses the order in
// which the addresses were assigned. Errors are [ErrNotSelected], [ErrRefused], or those of reading the pod's namespace
// and addresses.
func (m *InPlace) Rulesets(ctx context.Context, pod *corev1.Pod) ([]ruleset.Ruleset, error) {
	w, err := m.wanted(ctx, pod)
	return w.rules, err
}

// wanted is the state that a pod should have.
type wanted struct {
	mesh  *dialect.Dialect  // that has the pod
	rules []ruleset.Ruleset // that are acceptable
	addrs []netip.Addr
}

func (m *InPlace) wanted(ctx context.Context, pod *corev1.Pod) (w wanted, err error) {
	if pod == nil {
		return w, selection.ErrNoPod
	}
	j := m.judgement(ctx, pod)
	if errors.Is(j.Err, redirect.ErrNamespaceUnknown) || errors.Is(j.Err, podkeep.ErrTooLarge) {
		return w, j.Err
	}
	addrs, errAddrs := podAddrs(pod)
	orders := [][]netip.Addr{addrs}
	if n := len(addrs); n > 0 && addrs[0].Is4() != addrs[n-1].Is4() {
		reversed := slices.Clone(addrs)
		slices.Reverse(reversed)
		orders = append(orders, reversed)
	}
	for _, order := range orders {
		plan, err := j.Plan(order, redirect.Kernel{})
		switch {
		case errors.Is(err, redirect.ErrNamespaceUnknown):
			return wanted{}, err
		case err == nil && !plan.Decision.Selected:
			return wanted{}, fmt.Errorf("%w: %s", ErrNotSelected, plan.Decision.Detail)
		case errAddrs != nil:
			return wanted{}, errAddrs
		case ctx.Err() != nil:
			return wanted{}, fmt.Errorf("rules of pod %s/%s: %w", pod.Namespace, pod.Name, context.Cause(ctx))
		case err != nil:
			return wanted{}, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		w.rules, w.mesh = append(w.rules, plan.Ruleset), j.Mesh
	}
	w.addrs = addrs
	return w, nil
}
