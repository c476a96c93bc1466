package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/nodeproxy/internal/conntrack"
	"github.com/meshcni/meshcni/nodeproxy/internal/listeners"
	"github.com/meshcni/meshcni/nodeproxy/internal/machine"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

const (
	// settleTime bounds the wait for what is on its way to the proxy when a pod leaves: a connection that it has yet to accept, a
	// query that it has yet to answer.
	settleTime = time.Second
	// drainLook is how often a pod that has left is looked at while the proxy carries connections of it.
	drainLook = time.Second
	// drainTime bounds the wait of a Release for connections through the proxy: ztunnel ends its own after 29 s, by the defaults of
	// Istio's chart (terminationGracePeriodSeconds less one).
	drainTime = 35 * time.Second
)

// keepOpen sees to it that rules which are about to come leave the connections alone that are open or being made: those that begin
// from now on the kernel tracks by itself, and of those before it is told. What cannot be done costs connections, not the pod's
// redirection. The caller calls done once the rules are there.
func (w *work) keepOpen() (done func()) {
	ns := w.e.ns.NetNS()
	table, err := conntrack.Open(ns)
	if err == nil {
		done = table.Close
		err = table.Track()
		if errors.Is(err, errors.ErrUnsupported) {
			err = nil // what begins between now and the rules is cut
		}
		if err == nil {
			var open []listeners.Connection
			if open, err = listeners.Connections(ns); err == nil {
				err = table.Adopt(open)
			}
		}
	}
	if err != nil {
		w.c.log(w.podOf()).Warn("connections that are open in a pod may be cut when it joins", "error", err.Error())
	}
	if done == nil {
		done = func() {}
	}
	return done
}

// draining is what a pod has that leaves, while connections through the proxy go on.
type draining struct {
	rules ruleset.Ruleset
	// ports are those on which the proxy takes connections, dns that for datagrams; 0: none.
	ports []uint16
	dns   uint16
}

// drain returns what the pod has while it leaves. Its settings may have become invalid since it was captured; then the mesh's own count.
// It is not ok if the mesh has none for such a pod: its connections are cut.
func (w *work) drain() (d draining, ok bool) {
	if w.pod == nil || w.mesh == nil {
		return d, false
	}
	plain := &corev1.Pod{ObjectMeta: w.pod.ObjectMeta, Spec: w.pod.Spec}
	plain.Annotations = nil
	for _, pod := range []*corev1.Pod{w.pod, plain} {
		result, err := w.mesh.Redirect(pod, w.namespace, w.addrs)
		if err != nil {
			continue
		}
		rs, err := result.Redirect.Ruleset()
		if err != nil {
			continue
		}
		p := result.Redirect.Proxy
		d = draining{rs.Draining(), []uint16{p.OutboundPort, p.InboundPort, p.TunnelPort, result.Redirect.DNS.Port}, result.Redirect.DNS.Port}
		return d, rs.IPv4 != nil || rs.IPv6 != nil
	}
	return d, false
}

// drains notes whether the proxy may carry connections of a pod that has left, so that the pod is no more for a proxy that comes.
func (c *Controller) drains(e *entry, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.draining, e.shared = on, e.shared && !on
	c.wake()
}

// leaving is what is the case in a pod that is to be out.
func (w *work) leaving(ctx context.Context, a *machine.Actual) (err error) {
	if w.e.draining && a.Ours { // this agent wrote them, so what they carry is all that matters
		if err = w.carried(a); err != nil || a.Carries {
			a.Rules = machine.RulesDraining
			return err
		}
	}
	if a.Rules, a.Ours, err = w.leftOver(ctx, a.Ours); err == nil && a.Rules == machine.RulesDraining {
		err = w.carried(a)
	}
	return err
}

// carried looks whether the proxy carries connections of the pod.
func (w *work) carried(a *machine.Actual) error {
	d, _ := w.drain()
	all, err := listeners.Connections(w.e.ns.NetNS())
	if err != nil {
		return err
	}
	n, _ := listeners.Carried(d.ports, all)
	if a.Carries = n > 0; a.Carries {
		w.detail = fmt.Sprintf("new connections go straight; %d that the proxy has go on until they end", n)
	}
	return nil
}

// drainRules has rules redirect nothing any more, and waits until the proxy has accepted what they redirected. The plugin's record
// goes first: a runtime recreates a pod whose record says that it has rules which are not there.
func (w *work) drainRules(ctx context.Context) error {
	if err := w.forgetRecord(w.reason); err != nil {
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
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for pause := lookFirst; ; pause = min(2*pause, lookMost) {
		all, err := listeners.Connections(w.e.ns.NetNS())
		if err != nil {
			return err
		}
		_, waiting := listeners.Carried(d.ports, all)
		if waiting+w.forgetDatagrams(d, true) == 0 || !sleep(ctx, pause) {
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
		w.c.log(w.podOf()).Warn("DNS queries from a socket that has asked before may go to the proxy, which has let the pod go, for 30 s after the last", "error", err.Error())
	}
	return kept
}

// takeBack has the proxy let the pod go.
func (w *work) takeBack(ctx context.Context) error {
	if w.Choice == machine.Out && w.e.ours {
		w.c.drains(w.e, true)
	}
	if err := w.c.opts.Proxy.Remove(ctx, w.e.uid); err != nil {
		return err
	}
	w.e.held, w.e.handed = heldNo, handed{}
	if d, ok := w.drain(); ok && w.Choice == machine.Out && w.e.ns != nil && w.e.ours {
		w.forgetDatagrams(d, false)
	}
	return nil
}
