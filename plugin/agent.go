package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/status"
)

// Agent is the node's agent, as the plugin needs it. [agentsock.Client] is one, and documents the errors; plugintest.Agent is one for tests.
type Agent interface {
	// Pod returns the pod with the namespace, name and UID.
	Pod(context.Context, status.ID) (agentsock.Pod, error)
	// Attach captures a pod whose mesh has its proxy on the node, and returns once its proxy listens. It leaves ns open.
	Attach(ctx context.Context, a agentsock.Attachment, ns syscall.Conn) (agentsock.Attached, error)
	// Detach says that an attachment is gone.
	Detach(context.Context, attachment.ID) error
	// Ready returns nil if Attach is served.
	Ready(context.Context) error
}

const (
	// agentTime is the cost to an ADD of an agent that does not answer. It is an order of magnitude above what an answer takes
	// on a busy node, and with what a process costs stays below 50 ms.
	agentTime = 40 * time.Millisecond
	// requiredTime bounds an ADD's wait for an agent that is there and does not have the pod yet, or is busy.
	requiredTime = 5 * time.Second
	// readyTime bounds the wait of STATUS.
	readyTime = time.Second
)

// onNode returns the first mesh whose proxy is on the node, or nil.
func onNode(meshes dialect.Set) *dialect.Dialect {
	for d := range meshes.All() {
		if d.NodeProxy != nil {
			return &d
		}
	}
	return nil
}

// mayAttach refuses a configuration that forbids what one of its meshes cannot do without.
func mayAttach(c netconf.Config, meshes dialect.Set) error {
	if mesh := onNode(meshes); mesh != nil && c.Agent == netconf.AgentOff {
		return fmt.Errorf("agent: off does not go with dialect %s, whose pods only the node's agent can capture", mesh.Name)
	}
	return nil
}

// askAgent gets the pod, and its namespace if a mesh needs it, from the agent. final is false if the API server is to be
// asked.
func (r *run) askAgent(ctx context.Context, meshes dialect.Set) (a answer, final bool) {
	required := r.config.Agent == netconf.AgentRequire
	if r.config.Agent == netconf.AgentOff {
		return a, false
	}
	if r.pod.uid == "" {
		// A deleted pod of the same name looks the same, and only the API server says which one is now.
		return answer{failure: hint(fail(types.ErrPluginNotAvailable, "the runtime passes no K8S_POD_UID, so the agent cannot be asked for pod %s", r.pod),
			`"agent" is "require" in the network configuration; "prefer" asks the API server`)}, required
	}
	limit := agentTime
	if required {
		limit = requiredTime
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	agent := r.OpenAgent(r.config)
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		p, err := agent.Pod(limited, status.ID{Namespace: r.pod.namespace, Name: r.pod.name, UID: r.pod.uid})
		if err == nil {
			err = r.trust(p, meshes)
		}
		if err == nil {
			return answer{pod: p.Pod, namespace: p.Namespace, source: fromAgent}, true
		}
		if !required {
			if !absent(err) {
				r.logger().Debug("the agent does not answer for the pod", "error", err.Error())
			}
			return a, false
		}
		if again := errors.Is(err, agentsock.ErrUnknown) || errors.Is(err, agentsock.ErrBusy); !again || !sleep(limited, pause) {
			return answer{unread: p.Pod == nil, failure: hint(fail(types.ErrTryAgainLater, "get pod %s from the agent: %v", r.pod, err),
				`"agent" is "require" in the network configuration; is the node's agent running?`)}, true
		}
	}
}

// trust checks that the answer is about the pod that the runtime means, and has all that the meshes read.
func (r *run) trust(p agentsock.Pod, meshes dialect.Set) error {
	switch {
	case p.Pod == nil || p.Pod.Namespace != r.pod.namespace || p.Pod.Name != r.pod.name:
		return fmt.Errorf("the agent's answer is about another pod than %s", r.pod)
	case p.Namespace == nil && meshes.ReadsNamespace(p.Pod):
		return errors.New("the agent does not read namespaces, and the pod's decides too")
	case p.Namespace != nil && p.Namespace.Name != r.pod.namespace:
		return fmt.Errorf("the agent's answer is about another namespace than %s", r.pod.namespace)
	}
	return r.pod.is(p.Pod)
}

// attach has the agent capture a pod whose mesh has its proxy on the node. If it fails, the agent has left the namespace as
// it was.
func (r *run) attach(ctx context.Context, done *captured, mesh string, ns NetNS, addrs []netip.Addr) *types.Error {
	doing := "attach pod " + r.pod.String() + " to its node's proxy"
	file, ok := ns.(syscall.Conn)
	if !ok {
		return fail(types.ErrInternal, "%s: the network namespace is no file that could be handed over", doing)
	}
	if r.pod.uid == "" {
		return fail(types.ErrPluginNotAvailable, "%s: the runtime passes no K8S_POD_UID, by which the agent knows the pod", doing)
	}
	done.backend = ""
	began := time.Now()
	attached, err := r.attachInTime(ctx, agentsock.Attachment{
		ID: r.attachment, Pod: status.ID{Namespace: r.pod.namespace, Name: r.pod.name, UID: r.pod.uid},
		Dialect: mesh, NetNS: r.netns, Addrs: addrs,
	}, file)
	if err != nil {
		if what := awaited(err); what != "" {
			doing += ": waited " + time.Since(began).Round(10*time.Millisecond).String() + " for the node's " + what
		}
		return r.inTime(ctx, attachFailure(doing, err))
	}
	done.backend, done.plan.Ruleset = attached.Backend, attached.Rules
	done.result = apply.Result{Backend: attached.Backend, Changed: attached.Changed, Skipped: attached.Skipped}
	done.left = attached.Unusable
	done.outcome = Redirected
	if !attached.Changed {
		done.outcome = Same
	}
	return nil
}

// attachInTime is Attach, again while there is no agent. For a proxy the agent waits, so that one request is enough.
func (r *run) attachInTime(ctx context.Context, a agentsock.Attachment, file syscall.Conn) (attached agentsock.Attached, err error) {
	agent := r.OpenAgent(r.config)
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		if end, ok := ctx.Deadline(); ok {
			a.Patience = time.Until(end) * 9 / 10 // the rest is for the hand-over, and for the answer
		}
		attached, err = agent.Attach(ctx, a, file)
		if err == nil || awaited(err) != "agent" || errors.Is(err, context.DeadlineExceeded) || !sleep(ctx, pause) {
			return attached, err
		}
		r.logger().Debug("the agent does not answer yet", "error", err.Error())
	}
}

// awaited names the part that an Attach lacked and that may come back by itself: the agent or the proxy; empty: neither.
func awaited(err error) string {
	var step *agentsock.StepError
	switch {
	case errors.As(err, &step) && step.Reason == statuscode.NodeProxyGone:
		return "proxy"
	case errors.As(err, &step) && step.Step == agentsock.StepAgent && step.Reason != statuscode.Releasing,
		absent(err), errors.Is(err, agentsock.ErrBusy), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "agent"
	}
	return ""
}

// attachFailure describes a failed Attach and the remedy.
func attachFailure(doing string, err error) *types.Error {
	var step *agentsock.StepError
	switch {
	case errors.As(err, &step):
		return hint(fail(types.ErrTryAgainLater, "%s: %v", doing, err),
			"step %q failed with reason %q; the pod does not start before the node's proxy listens in it", step.Step, step.Reason)
	case errors.Is(err, agentsock.ErrUnsupported):
		return hint(fail(types.ErrPluginNotAvailable, "%s: %v", doing, err),
			"the node's agent serves no proxies on the node: run it with --ambient, or with the chart's ambient.enabled")
	case absent(err):
		return hint(fail(types.ErrTryAgainLater, "%s: %v", doing, err),
			"the node's agent hands pods to the proxy; is it running on this node?")
	}
	return fail(types.ErrTryAgainLater, "%s: %v", doing, err)
}

// absent reports whether nobody listens on the agent's socket.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// detach tells the agent of a DEL, if the pod may be in the care of a proxy on the node. Without an agent it is told nothing:
// it finds out by itself that the pod is gone.
func (r *run) detach(ctx context.Context) {
	if meshes, err := r.meshes(r.config); err != nil || onNode(meshes) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	if err := r.OpenAgent(r.config).Detach(ctx, r.attachment); err != nil && !absent(err) && !errors.Is(err, agentsock.ErrUnsupported) {
		r.logger().Warn("the agent does not know that the attachment is gone", "container_id", r.attachment.ContainerID, "error", err.Error())
	}
}

// agentReady is the part of STATUS for what cannot do without the agent: a mesh whose proxy is on the node, and
// "agent": "require".
func (r *run) agentReady(ctx context.Context, meshes dialect.Set) *types.Error {
	mesh := onNode(meshes)
	required := r.config.Agent == netconf.AgentRequire
	if mesh == nil && !required {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	err := r.OpenAgent(r.config).Ready(ctx)
	switch {
	case err == nil, mesh == nil && errors.Is(err, agentsock.ErrUnsupported):
		return nil
	case r.config.ReadyWithoutAgent && absent(err):
		r.logger().Warn("ready without the agent, which does not listen", "error", err.Error())
		return nil
	case mesh == nil:
		return hint(fail(types.ErrPluginNotAvailable, "%v", err), `"agent" is "require" in the network configuration; is the node's agent running?`)
	}
	return hint(fail(types.ErrPluginNotAvailable, "dialect %s needs the node's agent: %v", mesh.Name, err),
		"the agent hands pods to the node's proxy; is it running on this node, with --ambient?")
}
