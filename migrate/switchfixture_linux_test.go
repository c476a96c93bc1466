package migrate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
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

// switchNodeFixture is a simulated node of a real API server: its list and its plugins are files, its jobs run as the agent's program, and
// the other's DaemonSet has a pod there as long as the controller would have one.
type switchNodeFixture struct {
	*world
	client   kubernetes.Interface
	conf     string
	bin      string
	tidy     bool // the other's agent takes its entry out when it ends, and puts it in when it begins
	mu       sync.Mutex
	change   func(*agentapi.Node)
	job      func(words string) error // before one, by its words
	remains  func(*kubectl.Cluster)   // after one, for what is left of it
	heard    func(string)             // of each piece of output
	silent   atomic.Bool              // the agent does not answer
	takes    atomic.Int32
	answer   string
	tried    int
	failing  bool
	paused   bool // the controller
	woken    chan struct{}
	finished chan struct{}
}

func newSwitchNode(t *testing.T, tidy bool) *switchNodeFixture {
	t.Helper()
	y := &switchNodeFixture{world: newWorld(t), conf: t.TempDir(), bin: t.TempDir(), tidy: tidy, woken: make(chan struct{}, 1), finished: make(chan struct{})}
	require.NoError(t, os.WriteFile(filepath.Join(y.bin, "istio-cni"), nil, 0o755))
	y.write(t, withBoth)
	config, err := clientcmd.BuildConfigFromFlags("", y.Kubeconfig)
	require.NoError(t, err)
	y.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	y.peer(t, "istio-cni")
	y.Node(t, "a", y.say)
	ctx, stop := context.WithCancel(context.Background())
	go y.control(ctx, t)
	t.Cleanup(func() { stop(); <-y.finished })
	require.Eventually(t, func() bool { return len(y.theirs(t)) == 1 }, netnstest.Patience, 20*time.Millisecond)
	return y
}

func (y *switchNodeFixture) file() string { return filepath.Join(y.conf, "10-x.conflist") }

func (y *switchNodeFixture) write(t *testing.T, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(y.file()+".new", []byte(text), 0o640))
	assert.NoError(t, os.Rename(y.file()+".new", y.file()))
}

func (y *switchNodeFixture) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(y.file())
	require.NoError(t, err)
	return string(text)
}

// say is what the node's agent says.
func (y *switchNodeFixture) say(path string) (any, error) {
	if y.silent.Load() {
		return kubectltest.Silent(path)
	}
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
	return kubectltest.Sound("a", func(n *agentapi.Node) {
		n.Installed.Plugins = nil
		for _, p := range f.Plugins() {
			n.Installed.Plugins = append(n.Installed.Plugins, p.Type)
		}
		if y.change != nil {
			y.change(n)
		}
	})(path)
}

func (y *switchNodeFixture) set(change func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	change()
	y.wake()
}

func (y *switchNodeFixture) theirSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	ds, err := y.client.AppsV1().DaemonSets("istio-system").Get(t.Context(), "istio-cni-node", metav1.GetOptions{})
	require.NoError(t, err)
	return ds
}

func (y *switchNodeFixture) theirs(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := y.client.CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return pods.Items
}

func (y *switchNodeFixture) label(t *testing.T) string {
	t.Helper()
	n, err := y.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	return n.Labels[own.Key(migration.SwitchedFrom)]
}

// control is the DaemonSet's controller, and the other's agent. It acts whenever something has changed.
func (y *switchNodeFixture) control(ctx context.Context, t *testing.T) {
	defer close(y.finished)
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { y.wake() }, UpdateFunc: func(any, any) { y.wake() }, DeleteFunc: func(any) { y.wake() },
	}
	all := informers.NewSharedInformerFactory(y.client, 0)
	for _, i := range []cache.SharedIndexInformer{all.Core().V1().Nodes().Informer(), all.Core().V1().Pods().Informer(), all.Apps().V1().DaemonSets().Informer()} {
		_, err := i.AddEventHandler(changed)
		assert.NoError(t, err)
	}
	all.Start(ctx.Done())
	defer all.Shutdown()
	for ctx.Err() == nil {
		y.reconcile(ctx, t)
		select {
		case <-ctx.Done():
		case <-y.woken:
		}
	}
}

func (y *switchNodeFixture) wake() {
	select {
	case y.woken <- struct{}{}:
	default:
	}
}

func (y *switchNodeFixture) reconcile(ctx context.Context, t *testing.T) {
	y.mu.Lock()
	paused := y.paused
	y.mu.Unlock()
	node, err := y.client.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
	if err != nil || paused {
		return
	}
	ds, err := y.client.AppsV1().DaemonSets("istio-system").Get(ctx, "istio-cni-node", metav1.GetOptions{})
	if err != nil {
		return
	}
	theirs := y.client.CoreV1().Pods("istio-system")
	pods, err := theirs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	off := node.Labels[own.Key(migration.SwitchedFrom)] == "istio-cni" && migration.KeepsOff(own, ds, "istio-cni")
	switch now := int64(0); {
	case off && len(pods.Items) > 0:
		if y.tidy {
			rest, err := conflist.Remove([]byte(y.text(t)), "istio-cni")
			assert.NoError(t, err)
			y.write(t, string(rest))
		}
		err := theirs.Delete(ctx, pods.Items[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		assert.True(t, err == nil || ctx.Err() != nil, "%v", err)
	case !off && len(pods.Items) == 0:
		made, err := theirs.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "istio-cni-node-", Labels: ds.Spec.Template.Labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
		}, Spec: corev1.PodSpec{
			NodeName: "a", HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/cni/net.d"}}}},
		}}, metav1.CreateOptions{})
		if !assert.True(t, err == nil || ctx.Err() != nil, "%v", err) || err != nil {
			return
		}
		if y.tidy && !strings.Contains(y.text(t), "istio-cni") {
			with, err := conflist.Insert([]byte(y.text(t)), []byte(`{"type": "istio-cni", "again": true}`))
			assert.NoError(t, err)
			y.write(t, string(with))
		}
		made.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		_, err = theirs.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		assert.True(t, err == nil || ctx.Err() != nil, "%v", err)
	}
}

// onNode runs a job by the agent's program.
func (y *switchNodeFixture) onNode(ctx context.Context, c *kubectl.Cluster, e kubectl.Job) ([]byte, error) {
	y.mu.Lock()
	before := y.job
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
	if y.remains != nil {
		y.remains(c)
	}
	return out.Bytes(), nil
}

func (y *switchNodeFixture) trial(context.Context, string, string, time.Duration) (kubectl.Test, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.tried++
	return kubectl.Test{Print: func(*visible.Printer) error { return nil }, Failed: y.failing}, nil
}

func (y *switchNodeFixture) runIn(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	out, errs := ear{heard: y.heard}, bytes.Buffer{}
	p := y.program(kubectlcmd.Program{Stdin: strings.NewReader(y.answer), Stdout: &out, Stderr: &errs}, func(c *kubectl.Cluster) {
		c.Job = func(ctx context.Context, e kubectl.Job) ([]byte, error) { return y.onNode(ctx, c, e) }
		c.Test = y.trial
	})
	code = p.Main(ctx, slices.Concat([]string{"--kubeconfig", y.Kubeconfig, args[0], "--watch=50ms", "--timeout=30s"}, args[1:]))
	return code, out.String(), errs.String()
}

// ear is output that somebody listens to.
type ear struct {
	bytes.Buffer
	heard func(string)
}

func (e *ear) Write(p []byte) (int, error) {
	if e.heard != nil {
		e.heard(string(p))
	}
	return e.Buffer.Write(p)
}

func (y *switchNodeFixture) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return y.runIn(t.Context(), args...)
}
