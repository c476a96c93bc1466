// Package nodeproxy is what a mesh's proxy that runs once on the node has to do with the agent: implement [Proxy], three methods, and
// hand it to the agent, package nodeagent. Package zds implements it for proxies that speak Istio's protocol.
//
// # Joining and leaving
//
// A pod joins in the order proxy, listeners, sysctl, probes, rules, annotation: its connections never meet rules without a proxy. It
// leaves in the order annotation, the plugin's record, redirection, proxy, probes, and last what is left of the rules. If its
// namespace cannot be found, its proxy stays. A pod whose containers have ended, or that is gone, is taken from the proxy; its
// rules die with its namespace.
//
// Rules are in force only while the proxy that has accepted the pod listens in its namespace. The agent looks there itself; the proxy
// does not report it. While no proxy is connected nobody joins, and captured pods stay captured: their connections are refused, as the
// mesh demands, unless the proxy listens without being connected.
package nodeproxy

import (
	"context"
	"errors"
	"syscall"

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

// ErrNoProxy: no proxy is connected that could take the pod, or the one that was asked has gone. Another may come. Check with
// errors.Is(err, nodeproxy.ErrNoProxy).
var ErrNoProxy = errors.New("no proxy is connected")

// Proxy is the node's proxy, or all of them while one replaces the other. Implement it to serve a proxy of your own; package
// zds does so for proxies that speak Istio's protocol.
type Proxy interface {
	// Add hands a pod over, and returns once the proxy that is to take new pods has accepted it. Adding a pod again, with the
	// same namespace, is no error. An error says that no proxy has the pod; after [ErrNoProxy] an ADD waits for one.
	Add(ctx context.Context, w Workload) error
	// Remove takes a pod back from every proxy. A pod that none has is no error.
	Remove(ctx context.Context, uid types.UID) error
	// Ready returns why no proxy could take a pod now, or nil.
	Ready() error
}

// Accepting is optional for a [Proxy]. Without it, each pod is handed over again when a proxy comes or goes.
type Accepting interface {
	// Accepted reports whether the proxy that is to take new pods has accepted this one with that namespace, be it by a snapshot.
	Accepted(uid types.UID, ns netnsexec.ID) bool
}
