package nodeproxy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
)

// PodID names a pod. The UID is the one that the runtime and the pod's control groups use; no decision rests on the name.
type PodID struct {
	UID             types.UID
	Namespace, Name string
}

// Workload is a pod as its proxy has to know it.
type Workload struct {
	PodID
	ServiceAccount string
	// NetNS is the pod's network namespace. The receiver does not close it; it may use it until the call returns, by
	// Control of its SyscallConn, which keeps the descriptor from being closed and given to another file meanwhile. Of a
	// workload of a snapshot, nil means that the namespace is not known: the proxy keeps the pod if it has it.
	NetNS syscall.Conn
}

// Proxy is the node's proxy, or all of them while one replaces the other. Implement it to serve a proxy of your own; package
// zds does so for proxies that speak Istio's protocol.
type Proxy interface {
	// Add hands a pod over, and returns once the proxy that is to take new pods has accepted it. Adding a pod again, with the
	// same namespace, is no error. An error says that no proxy has the pod.
	Add(ctx context.Context, w Workload) error
	// Remove takes a pod back from every proxy. A pod that none has is no error.
	Remove(ctx context.Context, uid types.UID) error
	// Ready returns why no proxy could take a pod now, or nil.
	Ready() error
}

// Connections is what a [Proxy] has besides that knows when proxies come and go. Without it, only the verification interval
// finds that a proxy lost its pods.
type Connections interface {
	// Subscribe calls changed after a proxy came or went, until the function that it returns is called. changed must not
	// block.
	Subscribe(changed func()) (cancel func())
	// Connected returns how many proxies there are.
	Connected() int
}

// NetNS is an open network namespace that stays the same until Close.
type NetNS interface {
	// NetNS is the namespace itself. The receiver does not close it.
	NetNS() *netnsexec.NetNS
	// Close gives up this use of it. The namespace stays open for other users.
	Close() error
}

// Namespaces knows which network namespace is a pod's; package netnsstore has one that outlives the agent.
type Namespaces interface {
	// Put notes that the open namespace is that of the pod, in place of any before. The receiver owns f, also on failure.
	Put(pod PodID, f *os.File) (NetNS, error)
	// Find returns the namespace that was noted, if it is still the pod's, or searches for it, and then notes it.
	// errors.Is(err, nodeproxy.ErrNoNamespace) means that there is none to be found now, which may change; any other error
	// means that this cannot be told.
	Find(ctx context.Context, pod PodID, addrs []netip.Addr) (NetNS, error)
	// Known lists the pods of which a namespace is noted, and so may have been captured.
	Known() []types.UID
	// Forget drops what is noted about the pod. It is no error if nothing is.
	Forget(uid types.UID) error
}

// ErrNoNamespace: the pod has no process in a network namespace of its own now. Check with
// errors.Is(err, nodeproxy.ErrNoNamespace).
var ErrNoNamespace = errors.New("the pod's network namespace is not to be found")

// Pods is this node's pods and the namespaces that they are in; package nodepods has one that watches the API server.
type Pods interface {
	// Pods returns all pods of the node, which the caller must not change.
	Pods() []*corev1.Pod
	// Namespace returns a namespace's name, labels and annotations. An error means that they are not known, which is
	// neither yes nor no.
	Namespace(name string) (*corev1.Namespace, error)
	// Synced reports whether Pods is complete: a pod that it lacks does not exist.
	Synced() bool
	// Subscribe calls changed with the UID of each pod that is new, changed or gone, or whose namespace changed, until the
	// function that it returns is called. changed must not block.
	Subscribe(changed func(types.UID)) (cancel func())
}

// Probes is the set of pods to which the host's own connections get the addresses that the pods' rules let pass; package
// probes has one of nftables and one of ipset and iptables.
type Probes interface {
	// Put adds a pod's addresses, in place of others that it had. An address that another pod had is now this pod's.
	Put(uid types.UID, addrs []netip.Addr) error
	// Delete removes the addresses that are still the pod's.
	Delete(uid types.UID) error
	// Entries returns what is in the kernel.
	Entries() (map[netip.Addr]types.UID, error)
}

// Status writes the annotation that reports a pod's state.
type Status interface {
	// Set sets the annotation of the pod with that UID, or removes it if the value is empty. apierrors.IsNotFound(err) and
	// IsConflict(err) mean that the pod is gone or another has its name.
	Set(ctx context.Context, pod PodID, key, value string) error
}
