//go:build linux

package plugin_test

import (
	"context"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Ratios, not times, are what may be compared between machines, so each benchmark measures its floor beside itself,
// turn by turn: what else the machine does falls on both.

func timed(fn func()) time.Duration {
	begin := time.Now()
	fn()
	return time.Since(begin)
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}

func trivial(b *testing.B) string {
	path, err := binarytest.Installed(programs, "./testdata/trivial")
	require.NoError(b, err)
	return path
}

// process runs a program whose output nobody needs, as a runtime starts a plugin.
func process(b *testing.B, path string, env ...string) {
	cmd := exec.CommandContext(b.Context(), path)
	cmd.Env = env
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkADD is an ADD of a dual-stack pod of the mesh in a fresh namespace, through the built program: with the pod from
// the agent's socket, and with one GET over TLS. Its floor is the least that iptables allows: both restore programs with the
// same rules, and a process that does nothing.
func BenchmarkADD(b *testing.B) {
	for _, backend := range []string{"iptables-nft", "iptables-legacy", "nftables"} {
		for _, source := range []string{"agent", "GET"} {
			b.Run(backend+"/"+source, func(b *testing.B) {
				n := newNode(b, backend)
				pod := caseOf(b, "fam-dual")
				n.inMemory(b)
				if source == "agent" {
					n.answers(b, pod)
				}
				nothing := trivial(b)
				texts := restoreTexts(b)
				variant := backend
				if backend == "nftables" {
					variant = "iptables-nft"
				}
				programs := [2]string{variant + "-restore", strings.Replace(variant, "iptables", "ip6tables", 1) + "-restore"}
				var ours, floor []time.Duration
				for b.Loop() {
					b.StopTimer()
					a := n.attach(pod, netnstest.New(b))
					bare := netnstest.New(b)
					b.StartTimer()
					ours = append(ours, timed(func() { add(b, a) }))
					b.StopTimer()
					floor = append(floor, timed(func() {
						for i, program := range programs {
							restore(b, bare, program, texts[i])
						}
						process(b, nothing)
					}))
					b.StartTimer()
				}
				n.asked(b, source)
				report(b, ours, floor, "floor")
			})
		}
	}
}

// answers serves the pod on the agent's socket. Call inMemory first.
func (n *node) answers(tb testing.TB, pod *corev1.Pod) {
	tb.Helper()
	dir := n.runDir
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	answer := agentsock.Pod{Pod: podkeep.Trim(pod)}
	s := &agentsock.Server{Handler: podOnly{answer: answer}}
	go func() { served <- s.Serve(ctx, filepath.Join(dir, agentsock.Name)) }()
	tb.Cleanup(func() {
		cancel()
		require.NoError(tb, <-served)
	})
	client := agentsock.Client{Path: filepath.Join(dir, agentsock.Name)}
	require.Eventually(tb, func() bool {
		_, err := client.Pod(context.Background(), status.ID{UID: string(pod.UID)})
		return err == nil
	}, netnstest.Patience, time.Millisecond)
}

// inMemory puts run_dir onto a tmpfs, where it is on a node, with a name that is short enough for a socket's address.
func (n *node) inMemory(tb testing.TB) {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "run")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, os.RemoveAll(dir)) })
	n.runDir = dir
}

// podOnly is a handler that has one pod.
type podOnly struct {
	agentsock.Handler
	answer agentsock.Pod
}

// Pod implements agentsock.Handler.
func (h podOnly) Pod(_ context.Context, id status.ID) (agentsock.Pod, error) {
	if id.UID != string(h.answer.Pod.UID) {
		return agentsock.Pod{}, agentsock.ErrUnknown
	}
	return h.answer, nil
}

// asked checks who answered for the pods.
func (n *node) asked(tb testing.TB, source string) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(n.runDir, "plugin.log"))
	require.NoError(tb, err)
	want := map[string]string{"agent": "agent", "GET": "api"}[source]
	all, right := strings.Count(string(text), `"msg":"decision"`), strings.Count(string(text), `"pod_source":"`+want+`"`)
	require.Positive(tb, right)
	require.GreaterOrEqual(tb, right*100, all*95, "a busy machine may let some answers be late")
}

func report(b *testing.B, ours, floor []time.Duration, name string) {
	o, f := median(ours), median(floor)
	b.ReportMetric(0, "ns/op") // the times below are the ones
	b.ReportMetric(o, "ms")
	b.ReportMetric(f, name+"-ms")
	b.ReportMetric(o/f, "x-"+name)
	// On a machine that does other things, the best of each says more.
	b.ReportMetric(float64(ours[0])/float64(floor[0]), "x-"+name+"-at-best")
}

func restoreTexts(b *testing.B) (texts [2]string) {
	d := istio.New()
	built, err := d.Redirect(caseOf(b, "fam-dual"), nil, []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00::5")})
	require.NoError(b, err)
	rs, err := built.Redirect.Ruleset()
	require.NoError(b, err)
	for i, f := range ruleset.Families {
		texts[i] = rs.Family(f).String()
	}
	return texts
}

func restore(b *testing.B, ns *netnsexec.NetNS, program, text string) {
	cmd := exec.CommandContext(b.Context(), program, "--noflush", "-w")
	cmd.Stdin = strings.NewReader(text)
	if err := ns.Run(cmd); err != nil {
		b.Fatal(program, err)
	}
}

// BenchmarkPass is an ADD of a pod outside of the mesh.
func BenchmarkPass(b *testing.B) {
	for _, name := range []string{"runtime-knows", "agent", "one-GET"} {
		b.Run(name, func(b *testing.B) {
			n := newNode(b, "auto")
			n.inMemory(b)
			pod := meshPod()
			pod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
			if name == "agent" {
				n.answers(b, pod)
			}
			a := n.attach(pod, netnstest.New(b))
			if name == "runtime-knows" {
				a.Config.(object)["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": pod.Annotations}
			}
			nothing := trivial(b)
			var ours, floor []time.Duration
			for b.Loop() {
				ours = append(ours, timed(func() { add(b, a) }))
				b.StopTimer()
				floor = append(floor, timed(func() { process(b, nothing) }))
				b.StartTimer()
			}
			report(b, ours, floor, "trivial")
		})
	}
}

// BenchmarkStart is the plugin's start-up: VERSION, against a program that does nothing.
func BenchmarkStart(b *testing.B) {
	plugin, nothing := binary(b), trivial(b)
	var ours, floor []time.Duration
	for b.Loop() {
		ours = append(ours, timed(func() { process(b, plugin, "CNI_COMMAND=VERSION") }))
		b.StopTimer()
		floor = append(floor, timed(func() { process(b, nothing) }))
		b.StartTimer()
	}
	report(b, ours, floor, "trivial")
	for path, unit := range map[string]string{plugin: "MB", nothing: "trivial-MB"} {
		st, err := os.Stat(path)
		require.NoError(b, err)
		b.ReportMetric(float64(st.Size())/1e6, unit)
	}
}

// BenchmarkFifty is 50 pods, 10 at a time, in fresh namespaces.
func BenchmarkFifty(b *testing.B) {
	const pods, atOnce = 50, 10
	for _, backend := range []string{"iptables-nft", "iptables-legacy", "nftables"} {
		for _, source := range []string{"agent", "GET"} {
			b.Run(backend+"/"+source, func(b *testing.B) {
				n := newNode(b, backend)
				pod := caseOf(b, "fam-dual")
				n.inMemory(b)
				if source == "agent" {
					n.answers(b, pod)
				}
				var took []time.Duration
				for b.Loop() {
					b.StopTimer()
					var all []binarytest.Attachment
					for range pods {
						all = append(all, n.attach(pod, netnstest.New(b)))
					}
					b.StartTimer()
					took = append(took, timed(func() {
						var wg sync.WaitGroup
						slots := make(chan struct{}, atOnce)
						for _, a := range all {
							slots <- struct{}{}
							wg.Go(func() {
								defer func() { <-slots }()
								if cmd, err := a.Command(b.Context(), "ADD"); err != nil {
									b.Error(err)
								} else if cmd.Stderr = io.Discard; cmd.Run() != nil {
									b.Error("an ADD failed")
								}
							})
						}
						wg.Wait()
					}))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(took)/1000, "s/50-pods")
			})
		}
	}
}
