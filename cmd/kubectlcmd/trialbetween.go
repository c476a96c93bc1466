package kubectlcmd

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/visible"
)

// site holds the pods that run on a node after its own connections were made.
type site struct {
	node string
	// peer is the pod outside the mesh; nil: it does not run.
	peer *corev1.Pod
	// dialects are those of the node's plugin, and pods what runs of them. An entry is nil if that does not.
	dialects []string
	pods     []*corev1.Pod
}

// pod is that of a mesh; nil: it does not run.
func (s site) pod(dialect string) *corev1.Pod {
	if at := slices.Index(s.dialects, dialect); at >= 0 {
		return s.pods[at]
	}
	return nil
}

// next is the first pod after a site, in a ring of all of them, and its node; nil: no other site has one.
func next(sites []site, after int, of func(site) *corev1.Pod) (node string, pod *corev1.Pod) {
	for i := 1; i < len(sites); i++ {
		s := sites[(after+i)%len(sites)]
		if pod := of(s); pod != nil {
			return s.node, pod
		}
	}
	return "", nil
}

// crossings are connections that show that a pod of a mesh reaches a pod outside it on another node.
func crossings(pod, plain *corev1.Pod, as standIn, family corev1.IPFamily) []attempt {
	return across(pod, plain, as, family, "outbound", "the proxy's own", plain.Name+"/app", openPort)
}

// meshCrossings are the same for a pod of the same mesh, whose proxy has to get what comes in.
func meshCrossings(pod, meshed *corev1.Pod, as standIn, family corev1.IPFamily) []attempt {
	return across(pod, meshed, as, family, "outbound to the mesh", "proxy to proxy", meshed.Name+"/"+as.proxy, as.in)
}

// across are connections to another pod, where what the proxy sends has to arrive at who, at a port.
func across(pod, to *corev1.Pod, as standIn, family corev1.IPFamily, outbound, own, who string, at uint16) []attempt {
	open := netip.AddrPortFrom(address(to, family), openPort)
	all := []attempt{aimed(outbound, pod, "app", open, pod.Name+"/"+as.proxy, as.out), aimed(own, pod, as.proxy, open, who, at)}
	if as.notOut {
		all = slices.Insert(all, 1, aimed(outbound+", excluded port", pod, "app", netip.AddrPortFrom(open.Addr(), excludedPort), to.Name+"/app", excludedPort))
	}
	return all
}

// between tries connections from each node's pods of the meshes to those of the next node that has such a pod. So each node is one end and
// the other, and the work grows with the nodes instead of their pairs. What does not run has a row already that says so.
func (t *trial) between(ctx context.Context, sites []site) []trialRow {
	sites = slices.DeleteFunc(sites, func(s site) bool { return s.peer == nil })
	if len(sites) < 2 {
		return nil
	}
	t.say("testing between %d nodes", len(sites))
	var running errgroup.Group
	running.SetLimit(trialsAtOnce)
	rows := make([][]trialRow, len(sites))
	for i := range sites {
		running.Go(func() error {
			for _, dialect := range sites[i].dialects {
				rows[i] = append(rows[i], t.onward(ctx, sites, i, dialect)...)
			}
			return nil
		})
	}
	_ = running.Wait() // none returns an error
	return slices.Concat(rows...)
}

// onward tries the connections of one site's pod of a mesh.
func (t *trial) onward(ctx context.Context, sites []site, from int, dialect string) (rows []trialRow) {
	pod := sites[from].pod(dialect)
	if pod == nil {
		return nil
	}
	as, err := t.standIn(dialect)
	if err != nil {
		return nil // its own row says so
	}
	plain := func(to *corev1.Pod, family corev1.IPFamily) []attempt {
		if as.proxy != "" {
			return crossings(pod, to, as, family)
		}
		return []attempt{passage("outbound", pod, to, family)}
	}
	meshed := func(to *corev1.Pod, family corev1.IPFamily) []attempt {
		if as.proxy != "" {
			return meshCrossings(pod, to, as, family)
		}
		return []attempt{passage("outbound to the mesh", pod, to, family)}
	}
	for _, way := range []struct {
		to    func(site) *corev1.Pod
		tries func(*corev1.Pod, corev1.IPFamily) []attempt
	}{
		{func(s site) *corev1.Pod { return s.peer }, plain},
		{func(s site) *corev1.Pod { return s.pod(dialect) }, meshed},
	} {
		node, to := next(sites, from, way.to)
		if to == nil {
			continue
		}
		for _, family := range families(pod, to) {
			row := trialRow{Node: sites[from].node, From: sites[from].node, To: node, Dialect: dialect, Family: string(family)}
			rows = append(rows, t.connectAll(ctx, row, way.tries(to, family))...)
		}
	}
	return rows
}

// connectAll makes connections at the same time. Each has a row like the one that is given.
func (t *trial) connectAll(ctx context.Context, like trialRow, tries []attempt) []trialRow {
	rows := make([]trialRow, len(tries))
	var all sync.WaitGroup
	for i, try := range tries {
		all.Go(func() {
			rows[i] = like
			rows[i].What = try.what
			rows[i].Result, rows[i].Detail = t.connect(ctx, try)
		})
	}
	all.Wait()
	return rows
}

// say tells of progress.
func (t *trial) say(format string, a ...any) {
	visible.To(t.Stderr).Printf(format+"\n", a...)
}
