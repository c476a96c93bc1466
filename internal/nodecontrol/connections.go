package nodecontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/kernel/conntrack"
	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

const (
	// settleTime bounds the wait for what is on its way to a proxy that is told at once when a pod leaves: a connection that it has yet to
	// accept, a query that it has yet to answer.
	settleTime = time.Second
	// drainLook is the interval at which a pod that has left is looked at while the proxy has it, or carries connections of it.
	drainLook = 500 * time.Millisecond
	// quietTime is the time for which nothing may have been carried when the proxy is told. Peers that connect less often may meet a pod
	// that has left, if they hear of it later than after DrainMinimum.
	quietTime = 3 * time.Second
	// pingBytes is more than an idle connection to the tunnel receives in pingTime: a ping of HTTP/2 and an answer to one, each of 39 bytes
	// with TLS, every 10 s (ztunnel). A request, one byte and the end are more.
	pingBytes, pingTime = 80, 5 * time.Second
	// releaseHold bounds how long a Release holds pods back, whatever DrainTimeout is; releaseMargin is what it leaves of its context's
	// time to take them out, and how long it waits for the connections of a proxy that goes on with them.
	releaseHold, releaseMargin = 30 * time.Second, 5 * time.Second
)

// keepOpen sees to it that rules which are about to come leave the connections alone that are open or being made: those that begin
// from now on the kernel tracks by itself, and of those before it is told. What cannot be done costs connections, not the pod's
// redirection. The caller calls done once the rules are there.
func (w *work) keepOpen() (done func()) {
	ns := w.e.ns.NetNS()
	table, err := conntrack.Open(ns)
	if err == nil {
		done = table.Close
		err = table.Track(w.c.opts.Identity.Program("joining"))
		if errors.Is(err, errors.ErrUnsupported) {
			err = nil // what begins between now and the rules is cut
		}
		if err == nil {
			var open []listeners.Connection
			if open, err = listeners.Connections(ns); err == nil || errors.Is(err, nfnetlink.ErrLong) {
				err = errors.Join(err, table.Adopt(open)) // of too many, those that were read go on
			}
		}
	}
	if err != nil {
		w.c.log(w.podOf()).Warn("connections that are open in a pod may be cut when it joins", "error", truncate.Finding(err.Error()))
	}
	if done == nil {
		done = func() {}
	}
	return done
}

// draining has the rules of a pod that leaves, while connections through the proxy go on.
type draining struct {
	rules ruleset.Ruleset
	proxy listeners.Proxy
	// dns is the port on which the proxy takes datagrams; 0: none.
	dns uint16
}

// drain returns what the pod has while it leaves. Its settings may have become invalid since it was captured; then the mesh's own count.
// It is not ok if the mesh has none for such a pod: its connections are cut.
func (w *work) drain() (d draining, ok bool) {
	if w.pod == nil || w.mesh == nil {
		return d, false
	}
	plain := &corev1.Pod{ObjectMeta: w.pod.ObjectMeta, Spec: w.pod.Spec}
	plain.Annotations = nil
	for _, end := range []struct {
		pod       *corev1.Pod
		namespace *corev1.Namespace
	}{{w.pod, w.namespace}, {plain, &corev1.Namespace{}}} {
		result, err := w.mesh.Redirect(end.pod, end.namespace, w.addrs)
		if err != nil {
			continue
		}
		rs, err := result.Redirect.Ruleset()
		if err != nil {
			continue
		}
		p := result.Redirect.Proxy
		d = draining{rules: rs.Draining(), dns: result.Redirect.DNS.Port, proxy: listeners.Proxy{
			Outbound: []uint16{p.OutboundPort, result.Redirect.DNS.Port}, Inbound: p.InboundPort, Tunnel: p.TunnelPort, Mark: p.Mark, Own: w.addrs,
		}}
		return d, rs.IPv4 != nil || rs.IPv6 != nil
	}
	return d, false
}

// drains notes whether the proxy has, or carries connections of, a pod that has left.
func (c *Controller) drains(e *entry, on bool) {
	if on && !e.draining {
		e.left, e.heard, e.busy, e.tunnel = time.Now(), time.Now(), time.Now(), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.draining = on
	c.wake()
}

// leaving is the state of a pod that is to be out.
func (w *work) leaving(ctx context.Context, a *machine.Actual) (err error) {
	a.Due = w.c.opts.DrainTimeout < 0
	if w.e.draining && a.Ours { // this agent wrote them, so what they carry is all that matters
		a.Rules = machine.RulesDraining
		if err = w.carried(a); err != nil || a.Carries || a.Held && !a.Due {
			return err
		}
	}
	if a.Rules, a.Ours, err = w.leftOver(ctx, a.Ours); err != nil || !a.Ours || a.Rules != machine.RulesDraining && a.Rules != machine.RulesNone {
		return err
	}
	if a.Held && !a.Due { // an agent before has begun this
		w.c.drains(w.e, true)
	}
	return w.carried(a)
}

// carried looks whether the proxy carries connections of the pod, and how long it is to have it still.
func (w *work) carried(a *machine.Actual) error {
	d, _ := w.drain()
	n, received, err := listeners.Carried(w.e.ns.NetNS(), d.proxy)
	many := errors.Is(err, nfnetlink.ErrLong)
	if many { // those that were not read may be the proxy's; the time bounds them
		n = max(n, 1)
	} else if err != nil {
		return err
	}
	e := w.e
	if e.queries {
		e.queries = w.forgetDatagrams(d, true) > 0
	}
	a.Carries, a.Due = n > 0, a.Due || w.overdue()
	if now := time.Now(); e.tunnel.used(received, now) || a.Carries {
		e.busy = now
	} else if a.Annotation == machine.SaysNothing && now.Sub(e.heard) >= w.c.opts.DrainMinimum && now.Sub(e.busy) >= quietTime {
		a.Due = true
	}
	switch held := a.Held && !a.Due; {
	case many:
		w.detail = fmt.Sprintf("new connections go straight; whether the proxy has others cannot be told: %s", err)
	case held && a.Carries:
		w.detail = fmt.Sprintf("new connections go straight; %d that the proxy has go on until they end, for at most %s", n, w.c.opts.DrainTimeout)
	case a.Carries:
		w.detail = fmt.Sprintf("new connections go straight; %d that the proxy has go on until they end", n)
	case held:
		w.detail = "new connections go straight; the proxy serves peers that have yet to hear of it"
	}
	return nil
}

// meter holds the bytes that peers had sent by each connection to the tunnel, and the time of that reading.
type meter map[netip.AddrPort]struct {
	bytes uint64
	at    time.Time
}

// used reports whether peers have used the tunnel since it was last asked, other than to keep a connection open.
func (m *meter) used(received map[netip.AddrPort]uint64, now time.Time) (used bool) {
	next := meter{}
	for peer, bytes := range received {
		was := (*m)[peer]
		more := bytes < was.bytes || bytes-was.bytes > pingBytes
		used = used || more
		if more || now.Sub(was.at) >= pingTime {
			was.bytes, was.at = bytes, now
		}
		next[peer] = was
	}
	*m = next
	return used
}

// overdue reports whether a pod that has left was held back for as long as may be.
func (w *work) overdue() bool {
	now := time.Now()
	by := w.c.mode().by
	return now.Sub(w.e.left) >= w.c.opts.DrainTimeout || !by.IsZero() && now.After(by)
}

// drainRules has rules redirect nothing any more. Where the proxy is to be told at once, it waits until that has accepted what they
// redirected; else a later look sees to it, so that pods that have left keep no worker from those that have yet to. The plugin's record goes
// first: a runtime recreates a pod whose record says that it has rules which are not there.
func (w *work) drainRules(ctx context.Context) error {
	if err := w.forgetRecord(w.Why); err != nil {
		return err
	}
	w.removed, w.e.ours = true, true
	d, ok := w.drain()
	if !ok {
		return w.backend.Remove(ctx, w.mesh.Names.Owner())
	}
	if _, err := w.backend.Apply(ctx, d.rules); err != nil {
		return err
	}
	w.c.drains(w.e, true)
	if w.c.opts.DrainTimeout > 0 {
		w.e.queries = w.forgetDatagrams(d, true) > 0
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.c.settleTime)
	defer cancel()
	for pause := looks; ; {
		waits, err := listeners.Waits(w.e.ns.NetNS(), d.proxy)
		if errors.Is(err, nfnetlink.ErrLong) {
			waits = true // one may; the time bounds it
		} else if err != nil {
			return err
		}
		if kept := w.forgetDatagrams(d, true); !waits && kept == 0 || !keeper.Sleep(ctx, pause.Step()) {
			return nil
		}
	}
}

// forgetDatagrams ends the redirection of DNS queries from sockets that go on to ask: with answered, of those that have their
// answer. It returns how many have not.
func (w *work) forgetDatagrams(d draining, answered bool) (kept int) {
	if d.dns == 0 {
		return 0
	}
	table, err := conntrack.Open(w.e.ns.NetNS())
	if err == nil {
		defer table.Close()
		kept, err = table.ForgetDatagrams(d.dns, answered)
	}
	if err != nil {
		w.c.log(w.podOf()).Warn("DNS queries from a socket that has asked before may go to the proxy, which has let the pod go, for 30 s after the last", "error", truncate.Finding(err.Error()))
	}
	return kept
}

// takeBack has the proxy let the pod go.
func (w *work) takeBack(ctx context.Context) error {
	w.c.drains(w.e, w.Choice == machine.Out && w.e.ours)
	w.c.unshare(w.e)
	if err := w.c.opts.Proxy.Remove(ctx, w.e.uid); err != nil {
		return err
	}
	w.e.held, w.e.handed = heldNo, handed{}
	if d, ok := w.drain(); ok && w.Choice == machine.Out && w.e.ns != nil && w.e.ours {
		w.forgetDatagrams(d, false)
	}
	return nil
}
