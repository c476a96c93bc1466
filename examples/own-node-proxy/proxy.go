// Package ownnodeproxy serves another mesh's proxy, which runs in the agent's own program and speaks no protocol at all: all
// it takes is the three methods of nodeproxy.Proxy. A proxy with a protocol of its own is served in the same way; for one that
// speaks Istio's, package zds has the methods already.
//
// [Agent] is the whole agent of such a mesh. Within a program of your own, hand the Gateway to nodeagent.New as its
// Options.Proxy: the agent decides which pods are handed over, sets their rules, and looks whether the ports of the mesh's dialect are
// listened on.
package ownnodeproxy

import (
	"context"
	"fmt"
	"net"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
)

// Gateway has the connections of all pods that it was handed. The zero value serves nothing.
type Gateway struct {
	// Port is where the pods' rules redirect connections to.
	Port uint16
	// Serve is called with each connection.
	Serve func(pod nodeproxy.PodID, conn net.Conn)

	mu        sync.Mutex
	listeners map[types.UID]listener
}

type listener struct {
	net.Listener
	in netnsexec.ID
}

var _ nodeproxy.Proxy = (*Gateway)(nil)

// Add listens in the pod. A socket stays in the namespace in which it was opened, so the namespace itself need not be kept.
func (g *Gateway) Add(ctx context.Context, w nodeproxy.Workload) error {
	ns, err := netnsexec.FromFile(w.NetNS, w.Namespace+"/"+w.Name)
	if err != nil {
		return fmt.Errorf("listen in pod %s/%s: %w", w.Namespace, w.Name, err)
	}
	defer func() { _ = ns.Close() }()
	g.mu.Lock()
	defer g.mu.Unlock()
	old, ok := g.listeners[w.UID]
	if ok && old.in == ns.ID() {
		return nil
	}
	l := listener{in: ns.ID()}
	if err := ns.Do(func() (err error) {
		l.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("[::]:%d", g.Port))
		return err
	}); err != nil {
		return fmt.Errorf("listen in pod %s/%s: %w", w.Namespace, w.Name, err)
	}
	if ok {
		_ = old.Close()
	}
	if g.listeners == nil {
		g.listeners = map[types.UID]listener{}
	}
	g.listeners[w.UID] = l
	go g.accept(w.PodID, l)
	return nil
}

func (g *Gateway) accept(pod nodeproxy.PodID, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go g.Serve(pod, conn)
	}
}

// Hello is a Serve that says whose connection it is.
func Hello(pod nodeproxy.PodID, conn net.Conn) {
	_, _ = fmt.Fprintf(conn, "the gateway has %s/%s", pod.Namespace, pod.Name)
	_ = conn.Close()
}

// Remove stops listening in the pod.
func (g *Gateway) Remove(_ context.Context, uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok := g.listeners[uid]
	if !ok {
		return nil
	}
	delete(g.listeners, uid)
	return l.Close()
}

// Ready is always true of a proxy that is in the agent itself.
func (g *Gateway) Ready() error { return nil }
