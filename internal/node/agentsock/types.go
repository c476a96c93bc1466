package agentsock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Name is the socket's file in run_dir.
const Name = "agent.sock"

// ErrUnknown: the agent does not know the pod, or not with that UID. It may know it a moment later. Check with
// errors.Is(err, agentsock.ErrUnknown).
var ErrUnknown = errors.New("the agent does not know the pod")

// ErrUnsupported: the agent does not serve the request, as one without node proxies does not serve Attach. Check with
// errors.Is(err, agentsock.ErrUnsupported).
var ErrUnsupported = errors.New("the agent does not do this")

// Pod is the answer to a request for a pod.
type Pod struct {
	// Pod holds at least the parts of a pod that a dialect reads.
	Pod *corev1.Pod
	// Namespace is the pod's, with its labels and annotations; nil: the agent does not read namespaces.
	Namespace *corev1.Namespace
}

// Attachment is a pod's network that the runtime is setting up. All is required but Dialect, NetNS and Addrs; without Addrs the
// namespace cannot be proven to be the pod's.
type Attachment struct {
	attachment.ID
	Pod status.ID `json:"pod"`
	// Dialect is the name of the mesh that selected the pod.
	Dialect string `json:"dialect"`
	// NetNS is the path of the network namespace, as the runtime named it. The namespace itself comes as an open file.
	NetNS string `json:"netns"`
	// Addrs are the pod's addresses, its primary one first. The API server does not have them yet.
	Addrs []netip.Addr `json:"addrs,omitempty"`
	// Patience bounds the agent's wait for the node's pods and for a proxy's connection. Zero: it does not wait for a proxy. It
	// is less than the time that the client has, so that the answer can still say what was waited for.
	Patience time.Duration `json:"patience,omitempty"`
}

// String returns for example "network k8s, container c0ffee, interface eth0: pod shop/web, of ambient, in /run/netns/x".
func (a Attachment) String() string {
	return fmt.Sprintf("%s: pod %s/%s, of %s, in %s", a.ID, a.Pod.Namespace, a.Pod.Name, a.Dialect, a.NetNS)
}

// Attached is the result of an Attach.
type Attached struct {
	// Backend applied the rules. Changed is false if they were there.
	Backend ruleset.Backend `json:"backend"`
	Changed bool            `json:"changed"`
	// Rules are those in force, Skipped the families that the kernel lacks, Unusable what the namespace did not accept, as
	// in [attachment.Record].
	Rules    ruleset.Ruleset  `json:"rules,omitzero"`
	Skipped  []ruleset.Family `json:"skipped,omitempty"`
	Unusable []string         `json:"unusable,omitempty"`
}

// StepError names the step at which an Attach failed. The namespace is then as it was before. Get it with
// errors.As(err, &stepError).
type StepError struct {
	// Step is a stable word for what failed, such as "rules", "hand-over" or "listeners".
	Step string
	// Reason is the code of why.
	Reason status.Code
	Err    error
}

// StepAgent is the Step of an Attach that the agent cannot begin: it has just started, another one still runs, or it ends. It may succeed
// before long.
const StepAgent = "agent"

// Error returns for example "hand-over: no proxy is connected".
func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// Handler serves the requests. Any error may be [ErrUnsupported]. The contexts end when the client goes away. A handler may
// also have a method Ready(context.Context) error, which says whether it serves Attach; without one it does.
type Handler interface {
	// Pod returns the pod with the namespace, name and UID, or [ErrUnknown].
	Pod(ctx context.Context, id status.ID) (Pod, error)
	// Attach captures a pod whose mesh has its proxy on the node, and returns once its proxy listens, or a [*StepError]. The
	// handler owns ns.
	Attach(ctx context.Context, a Attachment, ns *os.File) (Attached, error)
	// Detach says that an attachment is gone.
	Detach(ctx context.Context, id attachment.ID) error
	// Pods returns the state of each pod of the node.
	Pods(ctx context.Context) ([]status.Pod, error)
	// Release takes all pods out of the care of the node's proxy, before the agent goes for good, and returns those that
	// it could not take out.
	Release(ctx context.Context, r ReleaseOptions) ([]status.Pod, error)
}

// ReleaseOptions holds the options of releasing a node's pods. The zero value takes them out of the mesh.
type ReleaseOptions struct {
	// To is another agent of the mesh, which is to have the pods instead; they stay captured. Empty: none.
	To string `json:"to,omitempty"`
	// Undo ends what an earlier release began: the agent captures pods again. To is then not read.
	Undo bool `json:"undo,omitempty"`
	// Successor says that an agent asks that takes the place of this one on its node and has no such pods. Once all pods are released,
	// this one removes what it keeps of them, and has none any more until Undo. It stays ready meanwhile: it would be stopped otherwise.
	Successor bool `json:"successor,omitempty"`
}
