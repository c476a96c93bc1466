//go:build linux

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/api/unheard"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// enroller serves the requests about pods whose proxy is on the node.
type enroller interface {
	Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error)
	Detach(ctx context.Context, id attachment.ID) error
	Release(ctx context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error)
}

// socket serves run_dir/agent.sock. As a Prometheus collector it counts requests.
type socket struct {
	path     string
	pods     *nodepods.Watch // nil: the agent does not know its node's pods
	enroller enroller        // nil: it serves no proxies on the node
	left     *leftover       // pods of an agent before this one, whose socket serves as long as it runs; nil: none
	states   func() []status.Pod
	required bool // the plugin cannot do without it
	log      *slog.Logger
	requests *prometheus.CounterVec
	unheard  time.Duration // how long the API server may tell nothing
}

// nodePods returns what knows the node's pods. It knows nothing until it runs.
func (o Options) nodePods(s Config) (*nodepods.Watch, error) {
	meshes, err := o.meshes(s)
	if err != nil {
		return nil, err
	}
	client, err := o.client(s)
	if err != nil {
		return nil, err
	}
	return nodepods.New(nodepods.Options{
		API: client, Meshes: meshes, Namespaces: meshes.ReadsNamespace(nil), Dialects: o.Dialects,
		Attached: nodepods.Attachments(o.inventory(s)), Log: o.Log,
	})
}

// removeDeadSocket removes the socket of an agent that was killed. One that is served belongs to its agent, which removes it at its end.
func removeDeadSocket(path string) error {
	conn, err := net.Dial("unix", path)
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return removeIfThere(path)
	}
	return nil // there is none, or it is nothing of ours
}

// newSocket returns what serves the socket, or nil if nobody asks there. e may be nil.
func (o Options) newSocket(s Config, pods *nodepods.Watch, e enroller) *socket {
	if s.entry().Agent == netconf.AgentOff && e == nil {
		return nil
	}
	k := &socket{
		path: filepath.Join(s.RunDir, agentsock.Name), pods: pods, enroller: e,
		required: s.entry().Agent == netconf.AgentRequire || e != nil, log: o.Log,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: s.Identity.Metric("agent_requests_total"),
			Help: "Requests on the agent's socket, by request (pod, attach, detach, pods, release, ready) and outcome (ok, unknown and more). Request \"none\" was not read.",
		}, []string{"request", "outcome"}),
		unheard: cmp.Or(o.unheard, unheard.For),
	}
	for _, outcome := range []string{"ok", "unknown"} {
		k.requests.WithLabelValues("pod", outcome)
	}
	return k
}

// change has pods judged by the meshes of new settings.
func (k *socket) change(meshes dialect.Set) {
	if k != nil && k.pods != nil {
		k.pods.SetMeshes(meshes)
	}
}

// podsOf returns the pods of the node. The error means that they are not known.
func (k *socket) podsOf() ([]*corev1.Pod, error) {
	if k == nil || k.pods == nil || !k.pods.Synced() {
		return nil, errors.New("the agent does not know the node's pods")
	}
	return k.pods.Pods(), nil
}

// podByUID returns one of them by the UID by which the runtime knows it, or nil.
func (k *socket) podByUID(uid string) *corev1.Pod {
	if k == nil || k.pods == nil {
		return nil
	}
	return k.pods.ByUID(types.UID(uid))
}

// run serves until the context ends. That it cannot is an error only where the plugin cannot do without.
func (k *socket) run(ctx context.Context) error {
	if k == nil {
		return nil
	}
	server := &agentsock.Server{Handler: k, OnRequest: func(r agentsock.RequestInfo) {
		name := r.Kind
		if name == "" {
			name = "none"
		}
		k.requests.WithLabelValues(name, r.Outcome).Inc()
		if r.Err != nil && r.Outcome != "unknown" && r.Outcome != "unsupported" {
			k.log.Warn("a request on the agent's socket failed", "request", name, "outcome", r.Outcome, "error", r.Err.Error())
		}
	}}
	both, ctx := errgroup.WithContext(ctx)
	if k.pods != nil {
		both.Go(func() error { return k.pods.Run(ctx) })
	}
	both.Go(func() error {
		if k.left != nil {
			select {
			case <-k.left.free:
			case <-ctx.Done():
				return nil
			}
		}
		err := server.Serve(ctx, k.path)
		if err != nil && !k.required {
			k.log.Warn("pods are not served to the plugin, which asks the API server instead", "error", err.Error())
			return nil
		}
		return err
	})
	return both.Wait()
}

// News gives the reason that the plugin could not start pods for lack of the socket, and tells that the API server has told nothing of the node's pods for long.
func (k *socket) News() (all []status.News) {
	if k == nil || k.pods == nil {
		return nil
	}
	if k.required && !k.pods.Synced() {
		all = news.NotReady(codePodsUnknown, k.pods.Ready())
	}
	if err := k.pods.Outdated(k.unheard); err != nil {
		all = append(all, news.New(status.KindNotice, news.PodsOutdated, err.Error()))
	}
	return all
}

// Pod implements [agentsock.Handler].
func (k *socket) Pod(ctx context.Context, id status.ID) (agentsock.Pod, error) {
	if k.pods == nil {
		return agentsock.Pod{}, agentsock.ErrUnsupported
	}
	return k.pods.Pod(ctx, id)
}

// Attach implements [agentsock.Handler].
func (k *socket) Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
	if k.enroller == nil {
		return agentsock.Attached{}, errors.Join(agentsock.ErrUnsupported, ns.Close())
	}
	return k.enroller.Attach(ctx, a, ns)
}

// Detach implements [agentsock.Handler].
func (k *socket) Detach(ctx context.Context, id attachment.ID) error {
	if k.enroller == nil {
		return agentsock.ErrUnsupported
	}
	return k.enroller.Detach(ctx, id)
}

// Pods implements [agentsock.Handler].
func (k *socket) Pods(context.Context) ([]status.Pod, error) {
	if k.states == nil {
		return nil, agentsock.ErrUnsupported
	}
	return k.states(), nil
}

// Release implements [agentsock.Handler].
func (k *socket) Release(ctx context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error) {
	if k.enroller == nil && k.left != nil {
		return k.left.Release(ctx, r)
	}
	if k.enroller == nil {
		return nil, agentsock.ErrUnsupported
	}
	return k.enroller.Release(ctx, r)
}

// Ready returns an error while Attach is not served; see [agentsock.Handler].
func (k *socket) Ready(context.Context) error {
	if k.enroller == nil {
		return agentsock.ErrUnsupported
	}
	return nil
}

// Describe implements [prometheus.Collector].
func (k *socket) Describe(ch chan<- *prometheus.Desc) {
	if k != nil {
		k.requests.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (k *socket) Collect(ch chan<- prometheus.Metric) {
	if k != nil {
		k.requests.Collect(ch)
	}
}

// openSocket returns the socket of an agent without proxies on its node.
func (o Options) openSocket(s Config) (*socket, error) {
	if s.entry().Agent == netconf.AgentOff || s.Node == "" {
		return nil, nil //nolint:nilnil // a nil socket serves nothing
	}
	pods, err := o.nodePods(s)
	if err != nil && s.entry().Agent == netconf.AgentRequire {
		return nil, err
	}
	if err != nil {
		o.Log.Warn("pods are not served to the plugin, which asks the API server instead", "error", err.Error())
		return nil, nil //nolint:nilnil // as above
	}
	return o.newSocket(s, pods, nil), nil
}
