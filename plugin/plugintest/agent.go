package plugintest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// Agent is a node's agent in memory. The zero value knows no pod. Its methods are safe for
// concurrent use; set the fields before the first call, and read them after the last.
type Agent struct {
	// Err is what each call returns, such as fs.ErrNotExist for an agent that is not there.
	Err error
	// Hook, if set, sees each call before it is answered, by its name. An error that it returns is the answer.
	Hook func(ctx context.Context, call string) error
	// Dialects are the meshes that it knows. Default: this module's.
	Dialects []dialect.Dialect
	// Options are its operator's.
	Options dialect.Options
	// NoNamespaces makes it an agent that does not read namespaces.
	NoNamespaces bool

	mu   sync.Mutex
	pods map[status.ID]agentsock.Pod
	// Attached and Detached are what it was asked for.
	Attached []agentsock.Attachment
	Detached []attachment.ID
	// Asked counts requests for pods.
	Asked int
}

// Open is for plugin.Plugin.OpenAgent.
func (a *Agent) Open(netconf.Config) plugin.Agent { return openAgent{a} }

// Set stores a copy of the pod, and of its namespace, which may be nil: one without labels.
func (a *Agent) Set(pod *corev1.Pod, namespace *corev1.Namespace) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods == nil {
		a.pods = map[status.ID]agentsock.Pod{}
	}
	uid := string(cmp.Or(podid.Mirrored(pod), pod.UID))
	if namespace == nil {
		namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
	}
	a.pods[status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: uid}] = agentsock.Pod{Pod: podkeep.Trim(pod.DeepCopy()), Namespace: namespace.DeepCopy()}
}

func (a *Agent) called(ctx context.Context, call string) error {
	if a.Hook != nil {
		if err := a.Hook(ctx, call); err != nil {
			return err
		}
	}
	return a.Err
}

// openAgent implements plugin.Agent.
type openAgent struct{ *Agent }

// Pod implements plugin.Agent.
func (a openAgent) Pod(ctx context.Context, id status.ID) (agentsock.Pod, error) {
	a.mu.Lock()
	a.Asked++
	p, ok := a.pods[id]
	a.mu.Unlock()
	if err := a.called(ctx, "pod"); err != nil {
		return agentsock.Pod{}, err
	}
	if !ok {
		return agentsock.Pod{}, agentsock.ErrUnknown
	}
	p.Pod = p.Pod.DeepCopy()
	if a.NoNamespaces {
		p.Namespace = nil
	}
	return p, nil
}

// Attach implements plugin.Agent, for a [NetNS] and a pod that it was given: it applies the rules of the pod's dialect,
// which must select the pod.
func (a openAgent) Attach(ctx context.Context, at agentsock.Attachment, ns syscall.Conn) (agentsock.Attached, error) {
	a.mu.Lock()
	a.Attached = append(a.Attached, at)
	p, ok := a.pods[at.Pod]
	a.mu.Unlock()
	if err := a.called(ctx, "attach"); err != nil {
		return agentsock.Attached{}, err
	}
	n, isFake := ns.(openNetNS)
	if !ok || !isFake {
		return agentsock.Attached{}, agentsock.ErrUnknown
	}
	known := a.Dialects
	if known == nil {
		known = builtin.All()
	}
	i := slices.IndexFunc(known, func(d dialect.Dialect) bool { return d.Name == at.Dialect })
	if i < 0 {
		return agentsock.Attached{}, fmt.Errorf("no dialect %q", at.Dialect)
	}
	kernel, err := n.Kernel()
	if err != nil {
		return agentsock.Attached{}, err
	}
	plan, err := known[i].Plan(dialect.Subject{Pod: p.Pod, Namespace: p.Namespace, Addrs: at.Addrs, Kernel: kernel}, a.Options)
	if err != nil {
		return agentsock.Attached{}, err
	}
	if !plan.Decision.Selected {
		return agentsock.Attached{}, &agentsock.StepError{Step: "selection", Reason: plan.Decision.Reason, Err: errors.New(plan.Decision.Detail)}
	}
	result, err := n.Apply(ctx, plan.Ruleset)
	if err != nil {
		return agentsock.Attached{}, &agentsock.StepError{Step: "rules", Reason: "refused", Err: err}
	}
	return agentsock.Attached{
		Backend: result.Backend, Changed: result.Changed, Rules: plan.Ruleset, Skipped: result.Skipped, Unusable: result.Left(),
	}, nil
}

// Detach implements plugin.Agent.
func (a openAgent) Detach(ctx context.Context, id attachment.ID) error {
	a.mu.Lock()
	a.Detached = append(a.Detached, id)
	a.mu.Unlock()
	return a.called(ctx, "detach")
}

// Ready implements plugin.Agent.
func (a openAgent) Ready(ctx context.Context) error { return a.called(ctx, "ready") }
