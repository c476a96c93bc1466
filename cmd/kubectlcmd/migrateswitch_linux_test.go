package kubectlcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/plugin/attachment"
)

const (
	withBoth = `{
  "cniVersion": "1.0.0", "name":  "net",
  "plugins": [
    {"type": "ptp", "mtu": 9007199254740993},
    {"type": "istio-cni", "kubernetes": {"kubeconfig": "/x"}},
    {"type": "meshcni"}
  ]
}
`
	withOurs = `{
  "cniVersion": "1.0.0", "name":  "net",
  "plugins": [
    {"type": "ptp", "mtu": 9007199254740993},
    {"type": "meshcni"}
  ]
}
`
)

// yardNode is a simulated node of a real API server: its list and its plugins are files, its errands run as the agent's program, and
// the other's DaemonSet has a pod there as long as the controller would have one.
type yardNode struct {
	*world
	client   kubernetes.Interface
	conf     string
	bin      string
	tidy     bool // the other's agent takes its entry out when it ends, and puts it in when it begins
	mu       sync.Mutex
	change   func(*agentapi.Node)
	errand   func(words string) error // before one, by its words
	answer   string
	tried    int
	failing  bool
	paused   bool // the controller
	finished chan struct{}
}

func newYardNode(t *testing.T, tidy bool) *yardNode {
	t.Helper()
	y := &yardNode{world: newWorld(t), conf: t.TempDir(), bin: t.TempDir(), tidy: tidy, finished: make(chan struct{})}
	require.NoError(t, os.WriteFile(filepath.Join(y.bin, "istio-cni"), nil, 0o755))
	y.write(t, withBoth)
	config, err := clientcmd.BuildConfigFromFlags("", y.kubeconfig)
	require.NoError(t, err)
	y.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	y.peer(t, "istio-cni")
	y.node(t, "a", y.say)
	ctx, stop := context.WithCancel(context.Background())
	go y.control(ctx, t)
	t.Cleanup(func() { stop(); <-y.finished })
	require.Eventually(t, func() bool { return len(y.theirs(t)) == 1 }, 20*time.Second, 20*time.Millisecond)
	return y
}

func (y *yardNode) file() string { return filepath.Join(y.conf, "10-x.conflist") }

func (y *yardNode) write(t *testing.T, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(y.file()+".new", []byte(text), 0o640))
	assert.NoError(t, os.Rename(y.file()+".new", y.file()))
}

func (y *yardNode) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(y.file())
	require.NoError(t, err)
	return string(text)
}

// say is what the node's agent says.
func (y *yardNode) say(path string) (any, error) {
	if uid, ok := strings.CutPrefix(path, agentapi.PodPath); ok {
		pods, err := y.client.CoreV1().Pods("shop").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, p := range pods.Items {
			if string(p.UID) == uid && strings.HasPrefix(p.Name, "both") {
				return agentapi.Pod{Records: []attachment.Record{{Selected: true}}}, nil
			}
		}
		return agentapi.Pod{}, nil
	}
	text, err := os.ReadFile(y.file())
	if err != nil {
		return nil, err
	}
	f, err := conflist.Parse(text)
	if err != nil {
		return nil, err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	return sound("a", func(n *agentapi.Node) {
		n.Installed.Plugins = nil
		for _, p := range f.Plugins() {
			n.Installed.Plugins = append(n.Installed.Plugins, p.Type)
		}
		if y.change != nil {
			y.change(n)
		}
	})(path)
}

func (y *yardNode) set(change func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	change()
}

func (y *yardNode) daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	ds, err := y.client.AppsV1().DaemonSets("istio-system").Get(t.Context(), "istio-cni-node", metav1.GetOptions{})
	require.NoError(t, err)
	return ds
}

func (y *yardNode) theirs(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := y.client.CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return pods.Items
}

func (y *yardNode) label(t *testing.T) string {
	t.Helper()
	n, err := y.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	return n.Labels[switchedFrom]
}

// control is the DaemonSet's controller, and the other's agent.
func (y *yardNode) control(ctx context.Context, t *testing.T) {
	defer close(y.finished)
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		node, err := y.client.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			continue
		}
		ds, err := y.client.AppsV1().DaemonSets("istio-system").Get(ctx, "istio-cni-node", metav1.GetOptions{})
		if err != nil {
			continue
		}
		pods, err := y.client.CoreV1().Pods("istio-system").List(ctx, metav1.ListOptions{})
		y.mu.Lock()
		paused := y.paused
		y.mu.Unlock()
		if err != nil || paused {
			continue
		}
		off := node.Labels[switchedFrom] == "istio-cni" && keepsOff(ds, "istio-cni")
		switch now := int64(0); {
		case off && len(pods.Items) > 0:
			if y.tidy {
				rest, err := conflist.Remove([]byte(y.text(t)), "istio-cni")
				assert.NoError(t, err)
				y.write(t, string(rest))
			}
			_ = y.client.CoreV1().Pods("istio-system").Delete(ctx, pods.Items[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		case !off && len(pods.Items) == 0:
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "istio-system", GenerateName: "istio-cni-node-", Labels: ds.Spec.Template.Labels}, Spec: corev1.PodSpec{
				NodeName: "a", HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}},
				Volumes: []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/cni/net.d"}}}},
			}}
			made, err := y.client.CoreV1().Pods("istio-system").Create(ctx, pod, metav1.CreateOptions{})
			if err != nil {
				continue
			}
			if y.tidy && !strings.Contains(y.text(t), "istio-cni") {
				with, err := conflist.Insert([]byte(y.text(t)), []byte(`{"type": "istio-cni", "again": true}`))
				assert.NoError(t, err)
				y.write(t, string(with))
			}
			made.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			_, _ = y.client.CoreV1().Pods("istio-system").UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
	}
}

// onNode runs an errand by the agent's program.
func (y *yardNode) onNode(ctx context.Context, e errand) ([]byte, error) {
	y.mu.Lock()
	before := y.errand
	y.mu.Unlock()
	if before != nil {
		if err := before(e.Args[1]); err != nil {
			return nil, err
		}
	}
	writable := false
	var args []string
	for _, a := range e.Args {
		for _, m := range e.Mounts {
			to := map[string]string{"/etc/cni/net.d": y.conf, "/opt/cni/bin": y.bin}[m.Path]
			a = strings.Replace(a, "="+m.At, "="+to, 1)
			writable = writable || m.Writable
		}
		args = append(args, a)
	}
	if writes := e.Args[1] != "show" && !slices.Contains(e.Args, "--dry-run"); writes != writable {
		return nil, fmt.Errorf("%q with a directory that is writable: %v", e.Args, writable)
	}
	var out, errs bytes.Buffer
	if code := (nodecmd.Program{Stdout: &out, Stderr: &errs}).Main(ctx, args); code != 0 {
		return nil, fmt.Errorf("exit code %d: %s", code, errs.String())
	}
	return out.Bytes(), nil
}

func (y *yardNode) trial(context.Context, string) (trialReport, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.tried++
	row := trialRow{Node: "a", Dialect: "istio", Family: "IPv4", What: "outbound", Result: resultOK}
	if y.failing {
		row.Result, row.Detail = resultFailed, "not captured"
	}
	return trialReport{Rows: []trialRow{row}, Nodes: 1, Of: 1}, nil
}

func (y *yardNode) runIn(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	p := Program{
		Stdin: strings.NewReader(y.answer), Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return y.world },
		onErrand: y.onNode, onTrial: y.trial,
	}
	code = p.Main(ctx, append([]string{"--kubeconfig", y.kubeconfig, "migrate"}, append(args, "--watch=50ms")...))
	return code, out.String(), errs.String()
}

func (y *yardNode) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return y.runIn(t.Context(), args...)
}

// report is what migrate says.
func (y *yardNode) report(t *testing.T) (code int, stdout, stderr string) {
	t.Helper()
	return y.world.run(t, "migrate")
}

// TestSwitchAndBack: a node goes over with the entry taken out, again without effect, and back to what it was, byte for byte and
// field for field, whether the other's agent cleans up after itself or not.
func TestSwitchAndBack(t *testing.T) {
	t.Parallel()
	for _, tidy := range []bool{false, true} {
		t.Run(fmt.Sprintf("cleans up %v", tidy), func(t *testing.T) {
			t.Parallel()
			y := newYardNode(t, tidy)
			before := y.daemonSet(t)
			for _, name := range []string{"both-1", "theirs-1"} {
				y.meshPod(t, "shop", name, "a")
			}

			code, out, errs := y.report(t)
			assert.Contains(t, out, "\n1 nodes with both plugins: a\n", "exit code %d: %s", code, errs)
			code, out, errs = y.run(t, "switch", "a", "--dry-run")
			require.Equal(t, 0, code, errs)
			assert.Contains(t, out, "a: to do: DaemonSet istio-system/istio-cni-node gets a node affinity")
			assert.Contains(t, out, "\n-    {\"type\": \"istio-cni\", \"kubernetes\": {\"kubeconfig\": \"/x\"}},\n")
			assert.Equal(t, withBoth, y.text(t))
			assert.Equal(t, before.ResourceVersion, y.daemonSet(t).ResourceVersion)
			assert.Empty(t, y.label(t))

			y.answer = "no\n"
			code, _, errs = y.run(t, "switch", "a")
			assert.Equal(t, 1, code)
			assert.Contains(t, errs, "node a: take istio-cni out? [yes/no] ")
			assert.Contains(t, errs, "nothing was changed")
			assert.Equal(t, before.ResourceVersion, y.daemonSet(t).ResourceVersion)

			y.answer = "yes\n"
			code, out, errs = y.run(t, "switch", "a", "--from", "istio-cni")
			require.Equal(t, 0, code, out+errs)
			assert.Equal(t, withOurs, y.text(t))
			assert.Empty(t, y.theirs(t))
			assert.Equal(t, "istio-cni", y.label(t))
			assert.Equal(t, 1, y.tried)
			now := y.daemonSet(t)
			assert.Equal(t, appsv1.OnDeleteDaemonSetStrategyType, now.Spec.UpdateStrategy.Type, "pods elsewhere stay")
			assert.True(t, keepsOff(now, "istio-cni"))
			assert.Contains(t, out, "a: 1 pods started with both plugins, and may have rules of both: restart them soon: shop/both-1\n")
			assert.Contains(t, out, "a: 1 pods have the rules of istio-cni, which stay in force: restart them when it suits you: shop/theirs-1\n")

			code, out, errs = y.report(t)
			assert.Contains(t, out, "\n1 nodes switched to ours: a\n", "exit code %d: %s", code, errs)

			y.answer = ""
			code, out, errs = y.run(t, "switch", "--all")
			require.Equal(t, 0, code, errs)
			assert.Contains(t, out, "a: going on\n")
			assert.Equal(t, withOurs, y.text(t))

			code, _, errs = y.run(t, "back", "a")
			assert.Equal(t, 1, code)
			assert.Contains(t, errs, "nothing was changed")
			code, out, errs = y.run(t, "back", "a", "--yes")
			require.Equal(t, 0, code, out+errs)
			assert.Empty(t, y.label(t))
			assert.Len(t, y.theirs(t), 1)
			assert.Equal(t, before.Spec, y.daemonSet(t).Spec)
			assert.NotContains(t, y.daemonSet(t).Annotations, beforeSwitch)
			if tidy {
				assert.Contains(t, out, "by its own agent")
				assert.Contains(t, y.text(t), `"again"`)
			} else {
				assert.Equal(t, withBoth, y.text(t))
			}
			left, err := os.ReadDir(y.conf)
			require.NoError(t, err)
			assert.Len(t, left, 1)
			code, out, _ = y.run(t, "back", "a", "--yes")
			assert.Equal(t, 0, code)
			assert.Contains(t, out, "a: it is not switched: ")
		})
	}
}

// TestSwitchRefuses: on what is not sound, nothing is changed.
func TestSwitchRefuses(t *testing.T) {
	t.Parallel()
	y := newYardNode(t, false)
	before := y.daemonSet(t)
	y.node(t, "b", nil)
	for name, tc := range map[string]struct {
		args    []string
		prepare func(t *testing.T)
		code    int
		want    string
	}{
		"no node":        {args: []string{"switch"}, code: 2, want: "name nodes, or give --all"},
		"both":           {args: []string{"switch", "a", "--all"}, code: 2, want: "name nodes, or give --all"},
		"no such node":   {args: []string{"switch", "z", "--yes"}, code: 1, want: "node z: there is no such node"},
		"no such plugin": {args: []string{"switch", "a", "--from", "init-containers"}, code: 2, want: "none of istio-cni, linkerd-cni, kuma-cni, consul-cni"},
		"nobody's":       {args: []string{"switch", "a", "--from", "kuma-cni", "--yes"}, code: 0, want: "nothing of kuma-cni is there"},
		"no agent":       {args: []string{"switch", "b", "--yes"}, code: 1, want: "no agent runs there: install the chart first"},
		"the agent is not ready": {args: []string{"switch", "a", "--yes"}, code: 1, want: "node-not-ready: write-failed: x", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Ready, n.NotReady = false, []string{"write-failed: x"} }
		}},
		"another file is loaded": {args: []string{"switch", "a", "--yes"}, code: 1, want: "not-loaded: the runtime loads /host/etc/cni/net.d/00.conf", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Installed.Loaded = "/host/etc/cni/net.d/00.conf" }
		}},
		"a file of our own": {args: []string{"switch", "a", "--yes"}, code: 1, want: "keeps a list of its own", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Installed.File = "/host/etc/cni/net.d/00-meshcni.conflist" }
		}},
		"no backend": {args: []string{"switch", "a", "--yes"}, code: 1, want: "no-backend: none", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.BackendError = "none" }
		}},
		"it runs, and its entry is not there": {args: []string{"switch", "a", "--yes"}, code: 1, want: "it may be about to write it", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Installed.Plugins = []string{"ptp", "meshcni"} }
		}},
		"switched from another": {args: []string{"switch", "a", "--from", "istio-cni", "--yes"}, code: 1, want: "it is switched from kuma-cni", prepare: func(t *testing.T) {
			_, err := y.client.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"meshcni.io/switched-from":"kuma-cni"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := y.client.CoreV1().Nodes().Patch(context.Background(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"meshcni.io/switched-from":null}}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			})
		}},
		"it cannot be seen": {args: []string{"switch", "a", "--yes"}, code: 1, want: "read-only file system", prepare: func(*testing.T) {
			y.errand = func(string) error { return errors.New("read-only file system") }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			y.set(func() { y.change, y.errand = nil, nil })
			if tc.prepare != nil {
				tc.prepare(t)
			}
			code, out, errs := y.run(t, tc.args...)
			assert.Equal(t, tc.code, code, out+errs)
			assert.Contains(t, out+errs, tc.want)
			assert.Equal(t, withBoth, y.text(t))
			assert.Equal(t, before.ResourceVersion, y.daemonSet(t).ResourceVersion)
			assert.NotEqual(t, "istio-cni", y.label(t))
		})
	}
}

// TestSwitchGoesBack: whatever fails after the operator's word, the node goes back by itself with --yes, and the exit code says so.
func TestSwitchGoesBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(y *yardNode, t *testing.T)
		want    []string
	}{
		"connections are not captured": {
			prepare: func(y *yardNode, _ *testing.T) { y.failing = true },
			want:    []string{"throw-away pods of the node are not captured as they should be"},
		},
		"the list cannot be written": {
			prepare: func(y *yardNode, _ *testing.T) {
				takes := 0
				y.errand = func(words string) error {
					if words == "take" {
						if takes++; takes == 2 { // after the dry run
							return errors.New("no space left on device")
						}
					}
					return nil
				}
			},
			want: []string{"take the entry of istio-cni out: no space left on device"},
		},
		"the entry comes back": {
			prepare: func(y *yardNode, t *testing.T) {
				y.Create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "meshcni-system", Name: "scribe"}, Spec: corev1.PodSpec{
					NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "i"}},
					Volumes: []corev1.Volume{{Name: "etc", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}}},
				}})
				y.change = func(n *agentapi.Node) {
					if !slices.Contains(n.Installed.Plugins, "istio-cni") {
						n.Installed.Plugins = append(n.Installed.Plugins, "istio-cni")
						y.write(t, withBoth)
					}
				}
			},
			want: []string{"the entry of istio-cni is in 10-x.conflist again: another program has written it; these pods of the node may have: meshcni-system/scribe"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newYardNode(t, false)
			before := y.daemonSet(t)
			tc.prepare(y, t)
			code, out, errs := y.run(t, "switch", "a", "--yes")
			assert.Equal(t, 1, code, out+errs)
			for _, want := range tc.want {
				assert.Contains(t, errs, want)
			}
			assert.Contains(t, out, "a: back: ")
			assert.Equal(t, withBoth, y.text(t))
			assert.Equal(t, before.Spec, y.daemonSet(t).Spec)
			assert.Empty(t, y.label(t))
			assert.Len(t, y.theirs(t), 1)
		})
	}
	t.Run("asked", func(t *testing.T) {
		t.Parallel()
		y := newYardNode(t, false)
		y.failing, y.answer = true, "yes\nno\n"
		code, out, errs := y.run(t, "switch", "a")
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "node a: go back to istio-cni? [yes/no] ")
		assert.Contains(t, out, "it stays as it is")
		assert.Equal(t, withOurs, y.text(t))
	})
}

// TestSwitchInterrupted: at each step an interrupt leaves a node that the same command carries over, and that back gives back.
func TestSwitchInterrupted(t *testing.T) {
	t.Parallel()
	y := newYardNode(t, false)
	for _, next := range []string{"switch", "back"} {
		for _, at := range []string{"its pod does not end", "before take", "after take", "while watching"} {
			t.Run(at+", then "+next, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				takes := 0
				y.set(func() {
					y.paused = at == "its pod does not end"
					y.errand = func(words string) error {
						if words != "take" {
							return nil
						}
						if takes++; takes == 2 && at == "before take" {
							interrupt()
							return context.Canceled
						}
						return nil
					}
					y.change = func(n *agentapi.Node) {
						out := !slices.Contains(n.Installed.Plugins, "istio-cni")
						if out && at == "while watching" || out && at == "after take" && takes == 2 {
							interrupt()
						}
					}
				})
				if at == "its pod does not end" {
					go func() {
						for y.labelled() == "" {
							time.Sleep(10 * time.Millisecond)
						}
						interrupt()
					}()
				}
				code, out, errs := y.runIn(ctx, "switch", "a", "--yes")
				require.Equal(t, 1, code, out+errs)
				assert.Contains(t, errs, "node a: interrupted; the same command goes on, and kubectl meshcni migrate back a goes back")
				y.set(func() { y.paused, y.errand, y.change = false, nil, nil })
				if next == "switch" {
					code, out, errs = y.run(t, "switch", "a")
					require.Equal(t, 0, code, out+errs)
					assert.Contains(t, out, "a: going on\n")
					assert.Equal(t, withOurs, y.text(t))
				}
				code, out, errs = y.run(t, "back", "a", "--yes")
				require.Equal(t, 0, code, out+errs)
				assert.Equal(t, withBoth, y.text(t))
				assert.Empty(t, y.label(t))
			})
		}
	}
}

// labelled is the node's label, for a goroutine.
func (y *yardNode) labelled() string {
	n, err := y.client.CoreV1().Nodes().Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return n.Labels[switchedFrom]
}

// TestSwitchWithoutAPIServer: with the API server away in the middle, both failures are told, and the list is as it was.
func TestSwitchWithoutAPIServer(t *testing.T) {
	t.Parallel()
	y := newYardNode(t, false)
	gone, takes := errors.New("connection refused"), 0
	y.errand = func(words string) error {
		if takes++; takes > 1 {
			return gone
		}
		return nil
	}
	code, _, errs := y.run(t, "switch", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "take the entry of istio-cni out: connection refused")
	assert.Contains(t, errs, "and going back failed: node a: connection refused")
	assert.Equal(t, withBoth, y.text(t))
	y.set(func() { y.errand = nil })
	code, out, errs := y.run(t, "back", "a", "--yes")
	require.Equal(t, 0, code, out+errs)
	assert.Equal(t, withBoth, y.text(t))
}

// TestBackWithoutDaemonSet: the entry goes back from what is kept, unless the other's program is gone with the DaemonSet.
func TestBackWithoutDaemonSet(t *testing.T) {
	t.Parallel()
	y := newYardNode(t, false)
	code, out, errs := y.run(t, "switch", "a", "--yes", "--no-test")
	require.Equal(t, 0, code, out+errs)
	assert.Zero(t, y.tried)
	require.NoError(t, y.client.AppsV1().DaemonSets("istio-system").Delete(t.Context(), "istio-cni-node", metav1.DeleteOptions{}))
	require.NoError(t, os.Rename(y.bin+"/istio-cni", y.bin+"/x"))
	code, _, errs = y.run(t, "back", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "its program is not on the node")
	assert.Equal(t, withOurs, y.text(t))
	require.NoError(t, os.Rename(y.bin+"/x", y.bin+"/istio-cni"))
	code, out, errs = y.run(t, "back", "a", "--yes", "--from", "istio-cni")
	require.Equal(t, 0, code, out+errs)
	assert.Equal(t, withBoth, y.text(t))
}

// TestSwitchRights: who may not carry it through does not begin.
func TestSwitchRights(t *testing.T) {
	t.Parallel()
	y := newYardNode(t, false)
	grant(t, y.world, "reader", "reader", map[string][]string{"nodes": {"list", "get"}, "pods": {"list"}})
	code, _, errs := y.run(t, "switch", "a", "--yes", "--from", "kuma-cni", "--as", "reader")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "daemonsets.apps is forbidden")
}

// TestKeepOff: affinities that a DaemonSet may have come back as they were, and what others have changed since stays.
func TestKeepOff(t *testing.T) {
	t.Parallel()
	linux := corev1.NodeSelectorRequirement{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}
	terms := func(r ...corev1.NodeSelectorRequirement) *corev1.Affinity {
		a := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		for _, one := range r {
			s := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{one}})
		}
		return a
	}
	for name, affinity := range map[string]*corev1.Affinity{"none": nil, "empty": {}, "of nodes": {NodeAffinity: &corev1.NodeAffinity{}}, "one term": terms(linux), "two terms": terms(linux, linux)} {
		t.Run(name, func(t *testing.T) {
			ds := &appsv1.DaemonSet{}
			ds.Spec.Template.Spec.Affinity = affinity
			ds.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
			was := ds.DeepCopy()
			assert.False(t, keepsOff(ds, "istio-cni"))
			require.NoError(t, keepOff(ds, "istio-cni"))
			assert.True(t, keepsOff(ds, "istio-cni"))
			assert.False(t, keepsOff(ds, "kuma-cni"))
			for _, term := range required(ds.Spec.Template.Spec.Affinity) {
				assert.Len(t, slices.DeleteFunc(slices.Clone(term.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool { return r.Key != switchedFrom }), 1)
			}
			changed := ds.DeepCopy()
			require.NoError(t, letBack(ds, "istio-cni"))
			assert.Equal(t, was.Spec, ds.Spec)

			gpu := corev1.NodeSelectorRequirement{Key: "gpu", Operator: corev1.NodeSelectorOpExists}
			required(changed.Spec.Template.Spec.Affinity)[0].MatchExpressions = append(required(changed.Spec.Template.Spec.Affinity)[0].MatchExpressions, gpu)
			require.NoError(t, letBack(changed, "istio-cni"))
			assert.False(t, keepsOff(changed, "istio-cni"))
			assert.Contains(t, required(changed.Spec.Template.Spec.Affinity)[0].MatchExpressions, gpu)
		})
	}
	given := &appsv1.DaemonSet{}
	given.Spec.Template.Spec.Affinity = terms(corev1.NodeSelectorRequirement{Key: switchedFrom, Operator: corev1.NodeSelectorOpDoesNotExist})
	assert.True(t, keepsOff(given, "istio-cni"), "by the operator's own values")
	require.NoError(t, letBack(given, "istio-cni"))
	assert.True(t, keepsOff(given, "istio-cni"), "which stay")
}
