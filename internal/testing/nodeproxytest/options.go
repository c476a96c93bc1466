package nodeproxytest

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// Options say what the proxy is like. Only Socket is required.
type Options struct {
	// Socket is the agent's, to which the proxy connects.
	Socket string
	// Outbound, Inbound, Tunnel and DNS are the ports. Default: 15001, 15006, 15008, 15053.
	Outbound, Inbound, Tunnel, DNS uint16
	// Mark is set on every socket. Default: 0x539.
	Mark uint32
	// Addrs answer every DNS query that Upstream does not. Default: 192.0.2.53 and 2001:db8::53.
	Addrs []netip.Addr
	// Upstream is asked for each DNS query, from inside the pod. The zero value: queries are answered with Addrs.
	Upstream netip.AddrPort
	// MaxBackoff bounds the pause before the proxy connects again, which is 20 ms at first and doubles. Default: 15 s.
	MaxBackoff time.Duration
	// Retry is how often a pod in which it could not listen is tried again. Default: 5 s.
	Retry time.Duration
	// Drain is how long connections live on after SIGTERM. Default: 25 s, which is the grace period of ztunnel's pod, 30 s,
	// less 5.
	Drain time.Duration
	// KnowTimeout is how long a connection waits for the control plane to tell about its pod. Default: 5 s.
	KnowTimeout time.Duration
	// Faults are those at the start; see [Proxy.SetFaults].
	Faults Faults
	// OnRequest is called with each request before it is acted upon, and may hold it up. Nil: nothing is. Not in a process of
	// its own.
	OnRequest func(zds.Request) `json:"-"`
	// Log is the proxy's log. Nil discards it. Not in a process of its own, which logs to stderr.
	Log *slog.Logger `json:"-"`
}

func (o Options) withDefaults() Options {
	o.Outbound, o.Inbound = cmp.Or(o.Outbound, 15001), cmp.Or(o.Inbound, 15006)
	o.Tunnel, o.DNS = cmp.Or(o.Tunnel, 15008), cmp.Or(o.DNS, 15053)
	o.Mark = cmp.Or(o.Mark, 0x539)
	if o.Addrs == nil {
		o.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}
	}
	o.MaxBackoff, o.Retry = cmp.Or(o.MaxBackoff, 15*time.Second), cmp.Or(o.Retry, 5*time.Second)
	o.Drain = cmp.Or(o.Drain, 25*time.Second)
	o.KnowTimeout = cmp.Or(o.KnowTimeout, 5*time.Second)
	if o.OnRequest == nil {
		o.OnRequest = func(zds.Request) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Faults are what the proxy does wrong. The zero value is none.
type Faults struct {
	// Nack is how many of the next Adds are refused; such a pod is not tried again before the next Add. -1: all.
	Nack int
	// DropAcks is how many of the next requests are acted upon and not answered. -1: all.
	DropAcks int
	// Delay is how long each answer is held back. Longer than the agent waits, it is a late ack.
	Delay time.Duration
	// ExitAfter ends the proxy with code 1 when it has received that many more requests, before the last is answered. 0: never.
	ExitAfter int
	// Deaf are ports on which it does not listen, though it acknowledges the pod.
	Deaf []uint16
	// Unknown are pods that the control plane has not told the proxy about. They are acknowledged as any other; their TCP connections
	// hang until they are known, or are closed after Options.KnowTimeout.
	Unknown []types.UID
}

// errExit: the proxy ends because the agent broke the protocol or a fault says so.
var errExit = errors.New("the proxy exits with code 1")

// State is what a proxy has and has seen.
type State struct {
	// Connected: it speaks with the agent. Ready: it was also told the snapshot, and listens in each pod.
	Connected, Ready bool
	// Connections counts how often it has connected, Snapshots how often it was told one.
	Connections, Snapshots int
	// Pods are those that it has, by UID.
	Pods map[types.UID]Pod
	// PID is the id of the process that it runs in.
	PID int
	// Requests are all that it has received, such as "Add 6d4b…", oldest first.
	Requests []string
}

// Pod is a pod that a proxy has.
type Pod struct {
	UID                             types.UID
	Name, Namespace, ServiceAccount string
	// NetNS is the namespace that it listens in.
	NetNS netnsexec.ID
	// Pending says why it does not listen; empty: it does.
	Pending string
	// Accepted counts the connections, and the DNS queries by UDP, by the port that they came to.
	Accepted map[uint16]int
	// Open is how many connections are open.
	Open int
}
