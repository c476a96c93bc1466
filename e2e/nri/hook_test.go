package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// node is a runtime and an agent's hook.
type node struct {
	*fake
	agent   *hook.Hook
	t       *testing.T
	pods    *plugintest.Pods
	records attachment.Store
	runDir  string // where the plugin writes them
	held    chan string
	sandbox map[string]*netnsexec.NetNS
}

func newNode(t *testing.T, mode hook.Mode, before ...*api.PodSandbox) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{
		t: t, fake: &fake{socket: socket(t), pods: before}, pods: plugintest.NewPods(), records: attachment.Open(dir), runDir: dir, held: make(chan string, 1000),
		sandbox: map[string]*netnsexec.NetNS{},
	}
	n.agent = hook.New(hook.Options{
		Socket: n.socket, Mode: mode, Log: slog.New(slog.DiscardHandler), Inventory: inventory.New(inventory.Options{Records: n.records}),
		Plugin: plugin.Plugin{Dialects: []dialect.Dialect{istio.New()}, OpenPods: n.pods.Open},
		Config: func() netconf.Config {
			return netconf.Config{Type: "meshcni", RunDir: n.runDir, Backend: netconf.Backend(ruleset.BackendNftables)}
		},
		Pod: func(context.Context, status.ID) (agentsock.Pod, error) { return agentsock.Pod{}, agentsock.ErrUnknown },
		Attach: func(_ context.Context, _ agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
			return agentsock.Attached{}, errors.Join(agentsock.ErrUnsupported, ns.Close())
		},
		Detach: func(context.Context, attachment.ID) error { return agentsock.ErrUnsupported },
		Held:   func(id status.ID, why string) { n.held <- id.Name + ": " + why },
	})
	return n
}

// run runs the hook until the test ends.
func (n *node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.agent.Run(ctx) }()
	n.t.Cleanup(func() { cancel(); assert.NoError(n.t, <-ended) })
	n.connects()
}

func (n *node) connects() {
	n.t.Helper()
	waittest.Eventually(n.t, "the hook is connected", func() error {
		if s := n.agent.State(); !s.Connected {
			return fmt.Errorf("it is not: %w", s.Err)
		}
		return nil
	})
}

// meshed makes a pod of the mesh and its sandbox with a network namespace. Annotations alternate keys and values.
func (n *node) meshed(name string, annotations ...string) *api.PodSandbox {
	n.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("u-" + name), Annotations: map[string]string{istio.StatusAnnotation: "{}"}}}
	p.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	n.pods.Set(p)
	ns := netnstest.New(n.t)
	n.sandbox[name] = ns
	return &api.PodSandbox{
		Id: "s-" + name, Namespace: p.Namespace, Name: name, Uid: string(p.UID), Annotations: p.Annotations, Ips: []string{"10.1.2.3"},
		Linux: &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{{Type: "network", Path: ns.Path()}}},
	}
}

func (n *node) runSandbox(p *api.PodSandbox) {
	n.t.Helper()
	assert.NoError(n.t, n.RunPodSandbox(n.t.Context(), &adaptation.RunPodSandboxRequest{Pod: p}), "a sandbox is never refused")
}

func (n *node) container(p *api.PodSandbox) error {
	_, err := n.fake.CreateContainer(n.t.Context(), &adaptation.CreateContainerRequest{Pod: p, Container: &api.Container{Id: "c-" + p.GetName(), PodSandboxId: p.GetId()}})
	return err
}

// record is the hook's of a pod; the zero one: there is none.
func (n *node) record(p *api.PodSandbox) attachment.Record {
	r, _ := n.records.Read(attachment.ID{Network: "meshcni.nri", ContainerID: p.GetId(), IfName: "eth0"})
	return r
}

// rerouting is an annotation that makes about as many rules, two for each interface.
func rerouting(rules int) []string {
	names := make([]string, rules/2)
	for i := range names {
		names[i] = fmt.Sprintf("v%d", i)
	}
	return []string{"istio.io/reroute-virtual-interfaces", strings.Join(names, ",")}
}

// What a pod's ADD decided counts, also where its record cannot be read back: a pod of the mesh is not let go with a handler whose packets no rule sees.
func TestSandboxedHandler(t *testing.T) {
	n := newNode(t, hook.Capture)
	n.runDir = t.TempDir() // the inventory reads another
	n.start(t)
	n.run()
	p := n.meshed("a")
	p.RuntimeHandler = "kata-qemu"
	n.runSandbox(p)
	waittest.Eventually(t, "its container is refused", func() error {
		if err := n.container(p); err == nil || !strings.Contains(err.Error(), `handler "kata-qemu"`) {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
}

// A pod of which no plugin has told is captured before its container, once; after its end nothing of it is left.
func TestCaptured(t *testing.T) {
	n := newNode(t, hook.Capture)
	n.start(t)
	n.run()
	p := n.meshed("a")
	n.runSandbox(p)
	waittest.Eventually(t, "its container is made", func() error { return n.container(p) })
	r := n.record(p)
	assert.Equal(t, "nri", r.By)
	assert.True(t, r.Selected)
	assert.Equal(t, r.NetNS.Path, n.sandbox["a"].Path())
	calls := n.pods.Calls()
	require.NoError(t, n.container(p))
	assert.Equal(t, calls, n.pods.Calls(), "it is known")

	refused := n.meshed("many", rerouting(40_000)...)
	n.runSandbox(refused)
	waittest.Eventually(t, "a pod of 40,000 rules is refused in its mesh's words", func() error {
		if err := n.container(refused); err == nil || !strings.Contains(err.Error(), "reroute-virtual-interfaces") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	waittest.Eventually(t, "people are told", func() error {
		select {
		case text := <-n.held:
			if strings.HasPrefix(text, "many: ") && strings.Contains(text, "reroute-virtual-interfaces") {
				return nil
			}
		default:
		}
		return errors.New("not yet")
	})
	assert.Zero(t, n.record(refused).ID)

	require.NoError(t, n.RemovePodSandbox(t.Context(), &adaptation.RemovePodSandboxRequest{Pod: p}))
	waittest.Eventually(t, "its record is gone", func() error {
		if n.record(p).By != "" {
			return errors.New("it is not")
		}
		return nil
	})
}

// What the runtime has already: pods without a container are captured, those that run are let be; the runtime does not wait. A runtime that comes
// again finds what was captured known.
func TestSynchronized(t *testing.T) {
	n := newNode(t, hook.Capture)
	waiting, ran := n.meshed("waiting"), n.meshed("ran")
	n.fake.pods = []*api.PodSandbox{waiting, ran}
	n.fake.containers = []*api.Container{{Id: "c", PodSandboxId: ran.GetId(), State: api.ContainerState_CONTAINER_RUNNING}}
	n.start(t)
	n.run()
	waittest.Eventually(t, "the waiting pod is captured", func() error {
		if n.record(waiting).By != "nri" {
			return errors.New("it is not")
		}
		return nil
	})
	require.NoError(t, n.container(ran))
	assert.Empty(t, n.record(ran).By, "its first packets have gone: it is repair's")
	assert.Len(t, n.agent.Rows(), 2, "the inventory has the runtime's word on both")

	calls := n.pods.Calls()
	n.kill()
	waittest.Eventually(t, "the hook is not connected", func() error {
		if n.agent.State().Connected {
			return errors.New("it is")
		}
		return nil
	})
	n.start(t)
	n.connects()
	require.NoError(t, n.container(waiting))
	assert.Equal(t, calls, n.pods.Calls(), "it is known")
	next := n.meshed("next")
	n.runSandbox(next)
	waittest.Eventually(t, "a new pod's container is made", func() error { return n.container(next) })
	assert.Equal(t, "nri", n.record(next).By)
}

// What the documentation says of an agent that is away: a pod whose annotation requires the plugin waits with its sandbox, and goes on once the agent
// is there; one without it starts without rules. The runtime's own validator judges.
func TestRequiredWhileAway(t *testing.T) {
	n := newNode(t, hook.Capture)
	n.fake.options = []adaptation.Option{adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true})}
	n.start(t)
	open, held := n.meshed("open"), n.meshed("held", "required-plugins.noderesource.dev", `["meshcni"]`)
	for _, p := range []*api.PodSandbox{open, held} {
		n.runSandbox(p)
	}
	require.NoError(t, n.container(open), "in the clear")
	require.ErrorContains(t, n.container(held), "meshcni")
	n.fake.pods = []*api.PodSandbox{open, held}
	n.fake.containers = []*api.Container{{Id: "c", PodSandboxId: open.GetId(), State: api.ContainerState_CONTAINER_RUNNING}}
	n.run()
	waittest.Eventually(t, "the sandbox that waited goes on", func() error { return n.container(held) })
	assert.Equal(t, "nri", n.record(held).By)
	assert.Empty(t, n.record(open).By)
}

// One lock is over the hooks of all pods: 110 pods that start at once, beside one of the most rules, are captured before their containers, and no
// answer is late. How long they wait on ours is logged; a busy machine is no measure, so hook's own TestWaitsAreFew holds the bound.
func TestHundredAtOnce(t *testing.T) {
	n := newNode(t, hook.Capture)
	n.start(t)
	n.run()
	pods := []*api.PodSandbox{n.meshed("most", rerouting(9_900)...)}
	for i := range 110 {
		pods = append(pods, n.meshed(fmt.Sprintf("p%d", i)))
	}
	var lock sync.Mutex // as the runtime's
	var took []time.Duration
	timed := func(call func() error) error {
		lock.Lock()
		defer lock.Unlock()
		began := time.Now()
		err := call()
		took = append(took, time.Since(began))
		return err
	}
	var all sync.WaitGroup
	for _, p := range pods {
		all.Go(func() {
			assert.NoError(t, timed(func() error { return n.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: p}) }))
			waittest.Eventually(t, p.GetName()+" has its container", func() error { return timed(func() error { return n.container(p) }) }) // as a kubelet tries again
		})
	}
	all.Wait()
	for _, p := range pods {
		assert.Equal(t, "nri", n.record(p).By, p.GetName())
	}
	assert.Zero(t, n.agent.State().Late)
	slices.Sort(took)
	at := func(share float64) time.Duration { return took[int(share*float64(len(took)-1))] }
	t.Logf("%d calls: p50 %s, p90 %s, p99 %s, most %s", len(took), at(0.5), at(0.9), at(0.99), at(1))
}
