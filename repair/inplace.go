package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/podnetns"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Mender looks at and sets the rules of a running pod; [*InPlace] is one.
type Mender interface {
	// Check returns how the pod's live rules differ from the wanted ones.
	Check(ctx context.Context, pod *corev1.Pod) ([]ruleset.Difference, error)
	// Apply makes the live rules the wanted ones, and reports whether they were
	// others before.
	Apply(ctx context.Context, pod *corev1.Pod) (changed bool, err error)
}

var (
	// ErrNoProcess: the pod has no running process to find its network namespace
	// by. Check with errors.Is(err, repair.ErrNoProcess); another time may do.
	ErrNoProcess = podnetns.ErrNoProcess

	// ErrVariant: the pod's rules were made by iptables, whose programs are not
	// here, so they can be neither compared nor replaced. Check with
	// errors.Is(err, repair.ErrVariant).
	ErrVariant = errors.New("the pod's rules are those of iptables, which is not on the path (--repair-host-root names the root of a host that has it)")

	// ErrNotSelected: the mesh's policy passes the pod over, so it should have no
	// rules. Check with errors.Is(err, repair.ErrNotSelected).
	ErrNotSelected = errors.New("the pod is not in the mesh")

	// ErrRefused: the plugin would not start the pod, for the reason that the error
	// goes on with, so it is not programmed here either. Check with
	// errors.Is(err, repair.ErrRefused).
	ErrRefused = errors.New("the plugin refuses the pod")
)

// InPlace programs running pods with what the plugin would have programmed: the
// same decision, the same Redirect, the same backends.
type InPlace struct {
	// Dialect is the mesh's. Required.
	Dialect dialect.Dialect
	// ProcRoot is a proc file system in which the pods' processes are seen;
	// empty is /proc.
	ProcRoot string
	// Backend is which to use; empty is auto.
	Backend apply.Name
	// Path is where iptables is looked for; empty is [apply.DefaultPath].
	Path string
	// HostRoot is the root directory in which iptables is looked for and runs, as the
	// plugin, which runs on the host, has it; empty is our own. See Root of [apply.Options].
	HostRoot string
	// Options are the plugin's: what it refuses is not programmed here either.
	Options dialect.Options
	// Namespace reads a namespace; needed for dialects with NeedsNamespace. What it
	// says is good for a minute: labels and annotations of namespaces are settings.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// Records are the plugin's of this node, in which what Apply does is noted; see [attachment.In]. The zero Store: none.
	Records attachment.Store
	// Log gets what does not stop a repair. nil: nothing does.
	Log *slog.Logger

	mu         sync.Mutex
	namespaces map[string]knownNamespace
	found      map[types.UID]podnetns.Found
}

type knownNamespace struct {
	*corev1.Namespace
	read time.Time
}

// namespaceAge is for how long a namespace that was read is good.
const namespaceAge = time.Minute

// namespace returns the pod's namespace if the dialect wants to know it.
func (m *InPlace) namespace(ctx context.Context, pod *corev1.Pod) (*corev1.Namespace, error) {
	if !m.Dialect.ReadsNamespace(pod) {
		return nil, nil
	}
	m.mu.Lock()
	known := m.namespaces[pod.Namespace]
	m.mu.Unlock()
	if known.Namespace != nil && time.Since(known.read) < namespaceAge {
		return known.Namespace, nil
	}
	ns, err := m.Namespace(ctx, pod.Namespace)
	if err != nil {
		return nil, fmt.Errorf("read namespace %s: %w", pod.Namespace, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range m.namespaces {
		if time.Since(n.read) >= namespaceAge {
			delete(m.namespaces, name)
		}
	}
	if m.namespaces == nil {
		m.namespaces = map[string]knownNamespace{}
	}
	m.namespaces[pod.Namespace] = knownNamespace{ns, time.Now()}
	return ns, nil
}

// Check implements [Mender].
func (m *InPlace) Check(ctx context.Context, pod *corev1.Pod) (diffs []ruleset.Difference, err error) {
	err = m.in(ctx, pod, func(b apply.Backend, wanted []ruleset.Ruleset) error {
		for i, rs := range wanted {
			got, err := b.Check(ctx, rs)
			if err != nil {
				return fmt.Errorf("check rules of pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
			if i == 0 || len(got) == 0 {
				diffs = got
			}
			if len(got) == 0 {
				return nil
			}
		}
		return nil
	})
	return diffs, err
}

// Apply implements [Mender].
func (m *InPlace) Apply(ctx context.Context, pod *corev1.Pod) (changed bool, err error) {
	err = m.in(ctx, pod, func(b apply.Backend, wanted []ruleset.Ruleset) error {
		result, err := b.Apply(ctx, wanted[0])
		if err != nil {
			return fmt.Errorf("apply rules of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		changed = result.Changed
		return nil
	})
	return changed, err
}

func (m *InPlace) in(ctx context.Context, pod *corev1.Pod, fn func(apply.Backend, []ruleset.Ruleset) error) (err error) {
	wanted, addrs, err := m.wanted(ctx, pod)
	if err != nil {
		return err
	}
	ns, err := m.open(pod.UID, addrs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	b, err := apply.Choose(ctx, ns, apply.Options{Backend: m.Backend, Runner: ns.Sandbox(), Path: m.Path, Root: m.HostRoot})
	if err != nil {
		return err
	}
	if b.Name() == apply.Nftables {
		if err := m.noneOfIptables(ns); err != nil {
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return fn(recording{b, m, pod, ns.ID()}, wanted)
}

// mostFound bounds what is remembered of pods that may be away: more than a node has.
const mostFound = 1024

// open opens the pod's network namespace, where it was the last time if it still is there.
func (m *InPlace) open(uid types.UID, addrs []netip.Addr) (*netnsexec.NetNS, error) {
	root := or(m.ProcRoot, "/proc")
	proc := os.DirFS(root)
	m.mu.Lock()
	found := m.found[uid]
	m.mu.Unlock()
	if !found.Still(proc, addrs) {
		var err error
		if found, err = podnetns.Find(proc, string(uid), addrs); err != nil {
			return nil, err
		}
		m.mu.Lock()
		if m.found == nil || len(m.found) >= mostFound {
			m.found = map[types.UID]podnetns.Found{}
		}
		m.found[uid] = found
		m.mu.Unlock()
	}
	return found.Open(root)
}

// podAddrs are the pod's addresses, its primary one first.
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

// Wanted returns the rules that will do for the pod, by the same plan as the
// plugin's; the first are those that Apply sets. Where the order of the addresses
// matters there are others: the kubelet puts the node's family first in the pod's
// status, the plugin goes by the order in which they were assigned. Errors are
// [ErrNotSelected], [ErrRefused], or those of reading the pod's namespace and addresses.
func (m *InPlace) Wanted(ctx context.Context, pod *corev1.Pod) ([]ruleset.Ruleset, error) {
	wanted, _, err := m.wanted(ctx, pod)
	return wanted, err
}

func (m *InPlace) wanted(ctx context.Context, pod *corev1.Pod) (wanted []ruleset.Ruleset, addrs []netip.Addr, err error) {
	namespace, err := m.namespace(ctx, pod)
	if err != nil {
		return nil, nil, err
	}
	if d := m.Dialect.Decide(pod, namespace); !d.Selected {
		return nil, nil, fmt.Errorf("%w: %s", ErrNotSelected, d.Detail)
	}
	if addrs, err = podAddrs(pod); err != nil {
		return nil, nil, err
	}
	orders := [][]netip.Addr{addrs}
	if reversed := slices.Clone(addrs); len(addrs) > 1 && addrs[0].Is4() != addrs[len(addrs)-1].Is4() {
		slices.Reverse(reversed)
		orders = append(orders, reversed)
	}
	for _, order := range orders {
		plan, err := m.Dialect.Plan(ctx, dialect.Subject{Pod: pod, Namespace: namespace, Addrs: order}, m.Options)
		switch {
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("rules of pod %s/%s: %w", pod.Namespace, pod.Name, context.Cause(ctx))
		case err != nil:
			return nil, nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		wanted = append(wanted, plan.Ruleset)
	}
	return wanted, addrs, nil
}

// noneOfIptables returns [ErrVariant] when iptables-nft or iptables-legacy has
// chains of the mesh in the namespace. The nftables backend sees neither, so to it
// the rules of a plugin that had iptables at hand would be missing.
func (m *InPlace) noneOfIptables(ns *netnsexec.NetNS) error {
	var legacy []byte
	err := ns.Do(func() error {
		for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			legacy = append(legacy, text...)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for rules of iptables: %w", err)
	}
	if len(legacy) > 0 {
		return fmt.Errorf("%w (iptables-legacy, tables %s)", ErrVariant, strings.Join(strings.Fields(string(legacy)), " "))
	}
	conn, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	if err != nil {
		return fmt.Errorf("look for rules of iptables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("look for rules of iptables: %w", err)
	}
	owner := m.Dialect.Names.Owner()
	for _, c := range chains {
		if c.Table.Family != nftables.TableFamilyIPv4 && c.Table.Family != nftables.TableFamilyIPv6 {
			continue
		}
		ours := slices.ContainsFunc(ruleset.Tables[:], func(t ruleset.Table) bool { return t.String() == c.Table.Name })
		if ours && owner.OwnsChain(c.Name) {
			return fmt.Errorf("%w (iptables-nft, chain %s)", ErrVariant, c.Name)
		}
	}
	return nil
}
