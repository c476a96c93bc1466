//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

const (
	// hookLook is the interval at which it is looked whether the runtime has a hook by now.
	hookLook = 5 * time.Second
	// hookGrace bounds the time without a connection that is no news: a runtime that restarts.
	hookGrace = 15 * time.Second
	// hookLateFor is how long an answer that came too late is told of.
	hookLateFor = 10 * time.Minute
	// maxEvent bounds an event's text, in bytes.
	maxEvent = 1024
)

// runtimeHook runs the hook of the container runtime with the present settings. As a Prometheus collector it has its metrics.
type runtimeHook struct {
	agent *Agent

	connected *prometheus.Desc
	requests  *prometheus.CounterVec

	running atomic.Pointer[hook.Hook] // nil: there is none
	well    atomic.Int64              // when it was connected last, or began to run; Unix nanoseconds
}

func newRuntimeHook(id meshcni.Identity) *runtimeHook {
	return &runtimeHook{
		connected: prometheus.NewDesc(id.Metric("runtime_hook_connected"), "1: the container runtime's hook is connected; 0: it is not, and pods that the plugin is not called for start without their rules.", nil, nil),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: id.Metric("runtime_hook_requests_total"),
			Help: "Requests of the container runtime's hook, by request and outcome: ok, refused (a container), late (after the runtime's patience, so the answer did not count).",
		}, []string{"request", "outcome"}),
	}
}

// rows returns the runtime's word on the node's pods.
func (h *runtimeHook) rows() []inventory.Row {
	if running := h.running.Load(); running != nil {
		return running.Rows()
	}
	return nil
}

// mode returns what is done at the hook now.
func (h *runtimeHook) mode() hook.Mode {
	if running := h.running.Load(); running != nil {
		return running.Mode()
	}
	return hook.Off
}

// captures reports whether pods are captured at the hook now.
func (h *runtimeHook) captures() bool {
	running := h.running.Load()
	return running != nil && running.Mode() == hook.Capture && running.State().Connected
}

// run runs the hook until the context ends.
func (h *runtimeHook) run(ctx context.Context) error {
	c := h.agent.present()
	mode := c.RuntimeHook.Resolve(c.NRISocket)
	for said := false; mode == hook.Off; mode = c.RuntimeHook.Resolve(c.NRISocket) {
		if c.RuntimeHook == hook.Off {
			return nil
		}
		if !said {
			said = true
			h.agent.log.Info("the container runtime has no hook here, so pods are captured by the network's plugins alone", "socket", c.NRISocket)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(hookLook):
		}
	}
	h.agent.log.Info("the container runtime's hook is used", "mode", mode, "socket", c.NRISocket)
	running := hook.New(h.agent.hookOptions(mode, h.held))
	h.well.Store(time.Now().UnixNano())
	h.running.Store(running)
	defer h.running.Store(nil)
	return running.Run(ctx)
}

// able returns why the hook cannot be all that captures pods, where it is to be; nil: it can, or something else captures them too.
func (h *runtimeHook) able() error {
	c := h.agent.present()
	if !c.Alone {
		return nil
	}
	switch c.RuntimeHook.Resolve(c.NRISocket) {
	case hook.Capture:
		return nil
	case hook.Gate:
		return errors.New("nothing but the container runtime's hook is to capture pods, and the agent lacks the capabilities SYS_ADMIN and NET_ADMIN for it: set runtime-hook=capture, with which the chart gives them")
	}
	return fmt.Errorf("nothing but the container runtime's hook is to capture pods, and there is no %s: switch NRI on in the runtime (containerd 2.0, CRI-O 1.30 and newer have it on by default), or do without alone (cni.enabled)", c.NRISocket)
}

// ready returns why it is not at work, where it is to be all that captures pods, or nil.
func (h *runtimeHook) ready() error {
	if !h.agent.present().Alone {
		return nil
	}
	running := h.running.Load()
	if err := h.able(); err != nil || running != nil && running.State().Connected {
		return err
	}
	err := errors.New("no connection yet")
	if running != nil && running.State().Err != nil {
		err = running.State().Err
	}
	return fmt.Errorf("nothing but the container runtime's hook captures pods, and it is not connected: %w", err)
}

// podsOf has the pods as the agent's own client reads them.
func podsOf(client *api.Client) plugin.Pods {
	return plugin.Pods{
		Pod: client.Pod, PatchPodStatus: client.PatchPodStatus,
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) { return namespace(ctx, client, name) },
	}
}

func namespace(ctx context.Context, client *api.Client, name string) (*corev1.Namespace, error) {
	list, err := client.ListOne(ctx, api.Namespaces, "", name, metav1.ListOptions{})
	if err == nil && len(list.Items) == 0 {
		err = apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	if err != nil {
		return nil, err
	}
	return &corev1.Namespace{ObjectMeta: list.Items[0].ObjectMeta}, nil
}

// hookOptions returns the options of a hook that decides and captures as the plugin on the node does.
func (a *Agent) hookOptions(mode hook.Mode, held func(status.ID, string)) hook.Options {
	k := a.sock
	o := hook.Options{
		Socket: a.present().NRISocket, Mode: mode, Inventory: a.options.inventory(a.present()), Held: held, Log: a.log,
		Plugin: plugin.Plugin{Identity: a.options.Config.Identity, Dialects: a.options.Dialects, OpenPods: kubepod.Open},
		Config: func() netconf.Config {
			c := a.present()
			p := c.Plugin
			if text, err := c.Entry(); err == nil {
				if entry, _, err := netconf.Parse(text, c.Identity); err == nil {
					p = entry
				}
			}
			p.RunDir, p.Kubernetes.Kubeconfig = c.RunDir, filepath.Join(c.RunDir, c.KubeconfigName)
			return p
		},
		Pod: func(context.Context, status.ID) (agentsock.Pod, error) {
			return agentsock.Pod{}, agentsock.ErrUnsupported
		},
		Attach: func(_ context.Context, _ agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
			return agentsock.Attached{}, errors.Join(agentsock.ErrUnsupported, ns.Close())
		},
		Detach:    func(context.Context, attachment.ID) error { return agentsock.ErrUnsupported },
		OnRequest: func(method, outcome string) { a.hook.requests.WithLabelValues(method, outcome).Inc() },
	}
	if a.present().Alone { // there is no kubeconfig
		o.Plugin.OpenPods = func(string) (plugin.Pods, error) {
			client, err := a.options.client(a.present())
			if err != nil {
				return plugin.Pods{}, err
			}
			return podsOf(client), nil
		}
	}
	if k != nil {
		o.Pod, o.Attach, o.Detach = k.Pod, k.Attach, k.Detach
	}
	return o
}

// held tells the log and the pod's object that its containers are refused.
func (h *runtimeHook) held(id status.ID, why string) {
	h.agent.log.Error("the containers of a pod are refused at the container runtime's hook", "code", news.HookHeld, "namespace", id.Namespace, "pod", id.Name, "error", why)
	n := news.New(status.KindNotice, news.HookHeld, why)
	n.Pod = id
	h.agent.tell(n)
}

// News lists the faults that keep the hook from doing its work.
func (h *runtimeHook) News() []status.News {
	all := news.NotReady(codeNoHook, h.ready())
	running := h.running.Load()
	if running == nil {
		return all
	}
	s := running.State()
	switch well := time.Unix(0, h.well.Load()); {
	case s.Connected:
		h.well.Store(time.Now().UnixNano())
	case s.Refused:
		all = append(all, news.New(status.KindNotice, news.HookRefused, fmt.Sprintf("the container runtime %s %s does not take part in the hook: %v", s.Runtime, s.Version, truncate.Error(s.Err, maxEvent))))
	case time.Since(well) > hookGrace && s.Err != nil:
		lost := news.New(status.KindNotice, news.HookLost, fmt.Sprintf("the container runtime's hook at %s is not connected, so pods that the network's plugins do not capture start without their rules: %v",
			h.agent.present().NRISocket, truncate.Error(s.Err, maxEvent)))
		lost.Since = well
		all = append(all, lost)
	}
	if s.Late > 0 && time.Since(s.LastLate) < hookLateFor {
		late := news.New(status.KindNotice, news.HookLate, fmt.Sprintf("%d of the container runtime's requests were answered after its patience of %s had ended; a pod may have started without its rules then", s.Late, s.Timeout))
		late.Since = s.LastLate
		all = append(all, late)
	}
	return all
}

// Describe implements [prometheus.Collector]. There are no metrics without a hook.
func (h *runtimeHook) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (h *runtimeHook) Collect(ch chan<- prometheus.Metric) {
	running := h.running.Load()
	if running == nil {
		return
	}
	value := 0.0
	if running.State().Connected {
		value = 1
	}
	ch <- prometheus.MustNewConstMetric(h.connected, prometheus.GaugeValue, value)
	h.requests.Collect(ch)
}
