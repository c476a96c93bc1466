package nodecontrol

import (
	"context"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/status"
)

// NetNS is a use of an open network namespace. [netnsstore.Ref] implements it.
type NetNS interface {
	// NetNS is the namespace itself. The receiver does not close it.
	NetNS() *netnsexec.NetNS
	// Addrs are the addresses by which it is known to be the pod's. They count until the API server has the pod's.
	Addrs() []netip.Addr
	// Close ends this use. The namespace stays open for others.
	Close() error
}

// Namespaces knows which network namespace is a pod's; [Store] does, and outlives the agent.
type Namespaces interface {
	// Put notes the namespace of a pod that is being set up, in place of any before. The file stays the caller's.
	Put(a agentsock.Attachment, file *os.File) (NetNS, error)
	// Find returns the pod's namespace: what is noted if it still is the pod's, else what is found, which is then noted. An
	// error means that it is not known now. The caller tries again.
	Find(ctx context.Context, pod Sought) (NetNS, error)
	// Known lists the pods of which something is noted, also from before a restart: they may have been captured.
	Known() []types.UID
	// Foresee looks for the namespaces of the pods of a whole round, and whether those that are noted are still the pods': one search
	// for many costs little more than one for one. What it finds Find returns.
	Foresee(ctx context.Context, pods []Sought)
	// Forget drops what is noted about the pod. It is no error if nothing is.
	Forget(uid types.UID) error
	// KeepSysctl keeps a value that a sysctl of the pod's present namespace had, in place of an earlier one, until Forget, or until another
	// namespace becomes the pod's. An error says that it may not outlive this process.
	KeepSysctl(uid types.UID, name, value string) error
	// KeptSysctl returns the value; false: none is kept.
	KeptSysctl(uid types.UID, name string) (value string, kept bool)
	// Journal returns why what is noted cannot be kept for the next agent of the node now, or nil.
	Journal() error
}

// Sought is a pod whose namespace is wanted.
type Sought = netnsstore.Pod

// Pods is this node's pods and the namespaces that they are in; package nodepods has one that watches the API server.
type Pods interface {
	keeper.Pods

	// Pods returns all pods of the node, which the caller must not change.
	Pods() []*corev1.Pod
	// Known returns the pod that the runtime means by a namespace, a name and a UID, or nil.
	Known(id status.ID) *corev1.Pod
	// Judgement returns what the node's meshes say of a pod, with what is known of its namespace now.
	Judgement(pod *corev1.Pod) *judge.Judgement
	// Synced reports whether Pods is complete: a pod that it lacks does not exist.
	Synced() bool
}

// Probes is the set of pods to which the host's own connections get the addresses that the pods' rules let pass; package
// probes has one.
type Probes interface {
	// Put adds a pod's addresses, in place of others that it had. An address that another pod had is now this pod's. The error
	// is an [*UnexemptError] if some can never be in the set, and the others are.
	Put(uid types.UID, addrs []netip.Addr) error
	// Delete removes the addresses that are still the pod's.
	Delete(uid types.UID) error
	// Entries returns what is in the kernel, in a map that nobody changes any more.
	Entries() (map[netip.Addr]types.UID, error)
}

// UnexemptError has the addresses that cannot be exempted on this host, since it has no connections to them, or none from an
// address that the pods know. That keeps no pod from being captured. Get it with errors.As(err, &unexempt).
type UnexemptError struct {
	Addrs []netip.Addr
	Err   error
}

// Error returns why.
func (e *UnexemptError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnexemptError) Unwrap() error { return e.Err }

// Status writes the annotation that reports a pod's state.
type Status interface {
	// Annotate sets the annotation of the pod with that UID, or removes it if the value is empty. apierrors.IsNotFound(err) and
	// IsConflict(err) mean that the pod is gone or another has its name.
	Annotate(ctx context.Context, pod *corev1.Pod, key, value string) error
}
