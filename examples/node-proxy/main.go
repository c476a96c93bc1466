// Command node-proxy is a proxy for a node's pods in a hundred lines, and as many for its sockets: the smallest program that
// the agent can hand pods to, and a start for a proxy of your own.
//
//	meshcni-node run --ambient --zds-socket /run/zds.sock
//	node-proxy /run/zds.sock
//
// It speaks the protocol by package zds. With each pod comes its network namespace, as an open file. In there it listens on
// 15001 for what the application sends, on 15006 for what is sent to it, and on 15008 for what other proxies of the mesh bring (by
// HTTP CONNECT). The first two are redirected, so it asks the kernel where each connection was to go. It connects there: from the
// client's address, if the connection came from outside, so that the application sees its clients. Here is where a mesh begins. All of its sockets have the mark by which the pod's rules know the proxy, else its own connections
// would come back to it. SO_REUSEPORT lets the next version listen before this one ends.
//
// It leaves out DNS (15053), so the pods need the annotation ambient.istio.io/dns-capture: "false", or the agent
// --ambient-dns-capture=false: otherwise the agent finds that nobody listens there, and captures no pod. It also leaves out what
// Istio's ztunnel does on SIGTERM: stop listening, and let connections end. Package internal/testing/nodeproxytest has all of that.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// pod is a namespace in which the proxy listens.
type pod struct {
	ns        *netnsexec.NetNS
	listeners []net.Listener
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: node-proxy SOCKET")
	}
	pods := map[string]*pod{} // by UID; they stay while the agent is away
	for {
		log.Print(serve(context.Background(), os.Args[1], pods))
		time.Sleep(time.Second)
	}
}

// serve does what the agent asks for until the connection ends.
func serve(ctx context.Context, socket string, pods map[string]*pod) error {
	agent, err := zds.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Close() }()
	named := map[string]bool{} // by the snapshot
	for {
		request, netns, err := agent.Receive()
		if err != nil {
			return err
		}
		log.Print(request)
		switch named[request.UID] = true; request.Kind {
		case zds.Add:
			err = add(pods, request.UID, netns)
		case zds.Del:
			remove(pods, request.UID)
		case zds.SnapshotSent:
			for uid := range pods {
				if !named[uid] {
					remove(pods, uid)
				}
			}
		}
		if err := agent.Ack(err); err != nil {
			return err
		}
	}
}

func add(pods map[string]*pod, uid string, netns *os.File) error {
	defer func() { _ = netns.Close() }()
	ns, err := netnsexec.FromFile(netns, netns.Name())
	if err != nil {
		return err
	}
	if old := pods[uid]; old != nil && old.ns.ID() == ns.ID() {
		return ns.Close()
	}
	remove(pods, uid) // it was in another namespace
	p := &pod{ns: ns}
	pods[uid] = p
	if err = errors.Join(p.listen(ambient.OutboundPort, outbound), p.listen(ambient.InboundPort, inbound), p.listen(ambient.TunnelPort, tunnel)); err != nil {
		remove(pods, uid)
	}
	return err
}

func remove(pods map[string]*pod, uid string) {
	if p := pods[uid]; p != nil {
		for _, l := range p.listeners {
			_ = l.Close()
		}
		_ = p.ns.Close()
		delete(pods, uid)
	}
}

// way is the way that a connection takes through the proxy.
type way string

const (
	outbound way = "outbound" // from the application
	inbound  way = "inbound"  // to the application, straight from its client
	tunnel   way = "tunnel"   // to the application, from another proxy
)

// listen forwards what comes to a port.
func (p *pod) listen(port int, way way) error {
	config := net.ListenConfig{Control: control}
	config.SetMultipathTCP(false)
	var l net.Listener
	err := p.ns.Do(func() (err error) { // the socket stays in the namespace; the thread does not
		l, err = config.Listen(context.Background(), "tcp", fmt.Sprintf("[::]:%d", port))
		return err
	})
	if err != nil {
		return err
	}
	p.listeners = append(p.listeners, l)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.forward(conn.(*net.TCPConn), way)
		}
	}()
	return nil
}
