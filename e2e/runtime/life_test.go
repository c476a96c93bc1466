package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// livesAtOnce is how many pods a node has at most, by the kubelet's default.
const livesAtOnce = 110

// turns is how often each way of capturing has its turn, so that what else the machine does falls on all of them.
const turns = 3

// way is a way of capturing pods.
type way struct {
	name string
	hook bool // only a runtime with a hook has it, such as the newest containerd
	// set makes the node have it, and returns the agent if it runs.
	set func(*testing.B, *node) *agent
}

var ways = []way{
	{"without", false, nil},
	{"hook", true, func(b *testing.B, n *node) *agent {
		a := hookedAgent(b, n)
		n.entryGone(b)
		return a
	}},
	{"plugin-agent", false, func(b *testing.B, n *node) *agent { return n.runAgent(b, "--runtime-hook=off") }},
	{"plugin-GET", false, func(b *testing.B, n *node) *agent {
		a := n.runAgent(b, "--runtime-hook=off")
		require.NoError(b, a.KillContainer(b.Context(), agentName))
		return nil
	}},
	{"both", true, hookedAgent},
}

func hookedAgent(b *testing.B, n *node) *agent {
	a := n.runAgentAs(b, hooked("SYS_ADMIN", "NET_ADMIN"), "--runtime-hook=capture")
	a.connects(b, true)
	return a
}

// lives is what was measured of a way, in seconds: of one life each, its start and its whole, and the CPU time of one; and of many at
// once how long one took to start, and the CPU time of one.
type lives struct{ start, life, cpu, crowd, crowdCPU []float64 }

// BenchmarkLife is a pod's life in the runtime: its sandbox, its application's container, their end. It goes through it without a mesh, with the
// runtime's hook, with the chained plugin, asking the agent or the API server, and with both; one pod after the other, and as many at
// once as a node has. CPU time is the runtime's and its plugins', and the agent's. What is told at the end are ratios to the life
// without a mesh.
func BenchmarkLife(b *testing.B) {
	version, err := pluginsVersion(containerd.Plugins)
	require.NoError(b, err)
	k := kind{name: containerdName, need: containerd.Need, version: version, plugins: containerd.Plugins, hook: containerd.NRI(), start: startContainerd}
	all := map[string]*lives{}
	for turn := range turns {
		for _, w := range ways {
			if w.hook && !k.hook {
				continue
			}
			b.Run(fmt.Sprintf("%s/turn-%d", w.name, turn+1), func(b *testing.B) {
				n := newNode(b, k, ptp(false))
				var a *agent
				if w.set != nil {
					a = w.set(b, n)
				}
				if all[w.name] == nil {
					all[w.name] = &lives{}
				}
				n.measure(b, all[w.name], a, w.set != nil)
			})
		}
	}
	b.Run("ratios", func(b *testing.B) {
		for b.Loop() { // what is measured was
		}
		b.ReportMetric(0, "ns/op")
		base := all["without"]
		for _, w := range ways[1:] {
			l := all[w.name]
			if l == nil || base == nil {
				continue // -bench chose others
			}
			if len(l.start) > 0 && len(base.start) > 0 {
				b.ReportMetric(middle(l.start)/middle(base.start), w.name+"-start")
				b.ReportMetric(middle(l.life)/middle(base.life), w.name+"-life")
				b.ReportMetric(1000*(mean(l.cpu)-mean(base.cpu)), w.name+"-CPU-ms-more")
			}
			if len(l.crowd) > 0 && len(base.crowd) > 0 {
				b.ReportMetric(middle(l.crowd)/middle(base.crowd), w.name+"-crowd")
				b.ReportMetric(1000*(mean(l.crowdCPU)-mean(base.crowdCPU)), w.name+"-crowd-CPU-ms-more")
			}
		}
	})
}

// measure adds one turn to what is known of a way, and shows that a pod that it starts is captured, or is not.
func (n *node) measure(b *testing.B, l *lives, a *agent, captured bool) {
	pids := []int{n.containerRuntime.(*containerd.Runtime).Pid()}
	if a != nil {
		pids = append(pids, a.pid(b))
	}
	ns := n.namespace(b)
	first := n.create(b, meshed(ns, "first"))
	s, err := n.RunSandbox(b.Context(), first)
	require.NoError(b, err)
	requireRedirected(b, s, captured)
	require.NoError(b, s.Remove(b.Context()))

	b.Run("one", func(b *testing.B) { n.one(b, ns, l, pids) })
	b.Run("crowd", func(b *testing.B) { n.crowd(b, ns, l, pids) })
}

// one measures lives one after the other.
func (n *node) one(b *testing.B, namespace string, l *lives, pids []int) {
	before, count := cpuTime(b, pids), 0
	var start, life []float64
	for b.Loop() {
		pod := n.create(b, meshed(namespace, fmt.Sprintf("one-%d", count)))
		count++
		from := time.Now()
		s, started, err := n.live(b.Context(), pod)
		require.NoError(b, err)
		require.NoError(b, s.Remove(b.Context()))
		start, life = append(start, started.Seconds()), append(life, time.Since(from).Seconds())
	}
	l.start, l.life = append(l.start, start...), append(l.life, life...)
	cpu := (cpuTime(b, pids) - before) / float64(count)
	l.cpu = append(l.cpu, cpu)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1000*middle(start), "ms/start")
	b.ReportMetric(1000*middle(life), "ms/life")
	b.ReportMetric(1000*cpu, "CPU-ms/life")
}

// crowd measures as many lives at once as a node has.
func (n *node) crowd(b *testing.B, namespace string, l *lives, pids []int) {
	var starts []float64
	before, count := cpuTime(b, pids), 0
	for b.Loop() {
		pods := make([]*corev1.Pod, livesAtOnce)
		for i := range pods {
			pods[i] = n.create(b, meshed(namespace, fmt.Sprintf("many-%d", count)))
			count++
		}
		took, sandboxes := make([]float64, livesAtOnce), make([]*sandbox, livesAtOnce)
		var g errgroup.Group
		for i, pod := range pods {
			g.Go(func() error {
				s, started, err := n.live(b.Context(), pod)
				sandboxes[i], took[i] = s, started.Seconds()
				return err
			})
		}
		require.NoError(b, g.Wait())
		starts = append(starts, took...)
		g.SetLimit(atATime)
		for _, s := range sandboxes {
			g.Go(func() error { return s.Remove(b.Context()) })
		}
		require.NoError(b, g.Wait())
	}
	l.crowd = append(l.crowd, starts...)
	cpu := (cpuTime(b, pids) - before) / float64(count)
	l.crowdCPU = append(l.crowdCPU, cpu)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1000*middle(starts), "ms/start")
	b.ReportMetric(1000*starts[len(starts)*99/100], "p99-ms/start") // middle has sorted them
	b.ReportMetric(1000*cpu, "CPU-ms/life")
}

// live starts a pod's sandbox and its application, and returns how long the sandbox took: the network's plugins and the hook are in it. An
// application that the hook holds is started again, as a kubelet does.
func (n *node) live(ctx context.Context, pod *corev1.Pod) (s *sandbox, started time.Duration, err error) {
	from := time.Now()
	s, err = n.RunSandbox(ctx, pod)
	started = time.Since(from)
	if err != nil {
		return nil, started, err
	}
	return s, started, proctest.Poll(netnstest.Patience, func() error { return s.StartContainer(ctx, &pod.Spec.Containers[0], nil) })
}

// pid is the agent's process, as the machine has it.
func (a *agent) pid(b *testing.B) int {
	status, err := a.n.ContainerStatus(b.Context(), &cri.ContainerStatusRequest{ContainerId: a.containers[agentName], Verbose: true})
	require.NoError(b, err)
	var info struct{ Pid int }
	require.NoError(b, json.Unmarshal([]byte(status.Info["info"]), &info))
	require.Positive(b, info.Pid)
	return info.Pid
}

// cpuTime is what the processes have used so far, and those that they have waited for, in seconds (proc_pid_stat(5)).
func cpuTime(b *testing.B, pids []int) (seconds float64) {
	const perSecond = 100 // USER_HZ
	for _, pid := range pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		require.NoError(b, err)
		_, rest, ok := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		require.True(b, ok && len(fields) > 14, "%s", text)
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			ticks, err := strconv.Atoi(field)
			require.NoError(b, err)
			seconds += float64(ticks) / perSecond
		}
	}
	return seconds
}

func middle(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

func mean(all []float64) (m float64) {
	for _, x := range all {
		m += x / float64(len(all))
	}
	return m
}
