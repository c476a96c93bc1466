package nodecontrol

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// work is one run of the machine for one pod, on the real kernel. The entry's mu is held.
type work struct {
	c     *Controller
	e     *entry
	visit *keeper.Visit // is told what time the run spends in the pod's namespace; nil: nobody is
	want

	backend apply.Backend // for the namespace; nil: this run has not found it yet
	needs   []listeners.Need
	// missing are the needs that nothing served at the last look.
	missing []listeners.Need
	// past are the ways past all rules that the pod's packets are seen to have, and unseen what cannot be told of that.
	past   []dialect.Bypass
	unseen []ruleset.Difference
	// unfound is the error of the search for the namespace.
	unfound error
	// result is that of the rules that this run wrote; nil: it wrote none.
	result *apply.Result
	// refuses: at the last look, rules redirected what is sent to the pod to nobody, so that the annotation comes before the proxy.
	refuses bool
	// removed: this run removed rules.
	removed bool
	// forgot: this run gave the namespace up.
	forgot bool
	// before is the state that this run's foretelling replaced; nil: it foretold none.
	before *status.Pod
	// triedMoves: this run has had connections move from one proxy to the next, if they can.
	triedMoves bool
	// starting: the pod does not run yet, so that it joins is no event.
	starting bool
}

// Observe implements [machine.Effects].
func (w *work) Observe(ctx context.Context) (a machine.Actual, err error) {
	defer w.visit.Since(time.Now())
	// To have looked into a namespace notes it, so that is no sign that rules in it are ours.
	a.Noted, a.Ours = slices.Contains(w.c.opts.Namespaces.Known(), w.e.uid), w.e.ours
	a.Proxy = w.c.opts.Proxy.Ready() == nil
	a.Annotation = w.annotation()
	a.Held = w.e.held == heldYes || w.e.held == heldUnknown && (a.Ours || a.Noted || a.Annotation != machine.SaysNothing)
	if err = w.exemptions(&a); err != nil || w.Choice == machine.Gone || w.Choice == machine.Unsure {
		return a, err
	}
	if w.Choice == machine.Out && !a.Ours && (a.Annotation == machine.SaysNothing || w.forgot) {
		return a, nil // it was never in the mesh, or has just left it, so nobody looks into its namespace
	}
	if w.backend == nil { // a later look of the same run is about the same namespace
		if w.unfound = w.find(ctx); w.unfound != nil {
			return a, nil //nolint:nilerr // that it is not found is what is the case; the report says why
		}
	}
	a.Namespace = true
	a.Handed = w.isHanded(a.Proxy)
	if w.backend == nil {
		if w.backend, err = w.choose(ctx); err != nil {
			return a, err
		}
		if w.Choice != machine.Out {
			w.past, w.unseen = bypass.Told(bypass.Live(w.e.ns.NetNS(), w.addrs))
		}
	}
	if w.Choice == machine.Out {
		return a, w.leaving(ctx, &a)
	}
	// Apply has asked the kernel whether the rules that this run wrote are there.
	a.Rules = machine.RulesSame
	if w.result == nil {
		if a.Rules, err = w.compare(ctx, w.plan.Ruleset); err != nil {
			return a, err
		}
	}
	a.Ours = a.Ours || a.Rules == machine.RulesSame
	a.Inbound = !w.plan.Redirect.Inbound.Ports.Empty()
	a.Moves = w.moves()
	if a.Rules == machine.RulesNone && !a.Handed && !w.e.captured && a.Annotation != machine.SaysEnrolled {
		return a, nil // it is handed over before anything else, whoever listens there
	}
	a.Listening, err = w.listening()
	a.Deaf = !w.e.deaf.IsZero() && time.Since(w.e.deaf) >= w.c.deafTime
	w.refuses = a.Rules == machine.RulesSame && a.Inbound && !a.Captured()
	return a, err
}

// isHanded reports whether the proxy that is there has accepted the pod with this namespace; while none is there, whether the last had.
func (w *work) isHanded(proxy bool) bool {
	e := w.e
	since := w.c.proxies.Load() // before it is asked: a proxy that comes meanwhile changes it
	if all, ok := w.c.opts.Proxy.(nodeproxy.Accepting); ok && proxy && all.Accepted(e.uid, e.id()) {
		e.held, e.handed = heldYes, handed{e.id(), since}
	}
	return e.handed.ns == e.id() && (!proxy || e.handed.since == since)
}

// find opens the pod's namespace, or keeps the one that is open if it is still the pod's.
func (w *work) find(ctx context.Context) error {
	ref, err := w.c.opts.Namespaces.Find(ctx, Sought{UID: w.id.UID, Addrs: w.addrs, OwnUsers: podid.OwnUsers(w.pod)})
	if err != nil {
		return err
	}
	return w.c.setNS(w.e, ref)
}

func (w *work) annotation() machine.Annotation {
	if !w.Status || w.pod == nil {
		return machine.SaysNothing
	}
	says := w.pod.Annotations[w.mesh.NodeProxy.StatusAnnotation]
	if w.e.toldOn == w.pod {
		says = w.e.told
	}
	switch says {
	case "":
		return machine.SaysNothing
	case w.mesh.NodeProxy.Enrolled:
		return machine.SaysEnrolled
	case w.mesh.NodeProxy.Pending:
		return machine.SaysPending
	}
	return machine.SaysElse
}

// exemptions compares the set of probes with the pod's addresses.
func (w *work) exemptions(a *machine.Actual) error {
	if w.c.opts.Probes == nil {
		return nil
	}
	entries, err := w.c.opts.Probes.Entries()
	if err != nil {
		return fmt.Errorf("read the addresses of probes: %w", err)
	}
	has := addrsWith(entries, w.e.uid)
	wanted := w.exemptable()
	a.AnyExempt, a.Exempt = len(has) > 0, (len(has) > 0 || len(wanted) == 0) && sameAddrs(has, wanted)
	return nil
}

// exemptable returns the pod's addresses that the set of probes can have.
func (w *work) exemptable() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(w.addrs), func(a netip.Addr) bool { return slices.Contains(w.e.unexempt, a) })
}

// exempt puts the pod's addresses into the set of probes. Which of them it cannot have is found out each time.
func (w *work) exempt() error {
	err := w.c.opts.Probes.Put(w.e.uid, w.addrs)
	var unexempt *UnexemptError
	if !errors.As(err, &unexempt) {
		w.e.unexempt = nil
		return err
	}
	if !sameAddrs(w.e.unexempt, unexempt.Addrs) {
		w.c.log(w.podOf()).Warn("the host's probes of a pod over some of its addresses are not exempt", "error", truncate.Finding(err.Error()))
	}
	w.e.unexempt = unexempt.Addrs
	return nil
}

func addrsWith(entries map[netip.Addr]types.UID, uid types.UID) (addrs []netip.Addr) {
	for addr, owner := range entries {
		if owner == uid {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (w *work) choose(ctx context.Context) (apply.Backend, error) {
	return podrules.Choose(ctx, w.e.ns.NetNS(), w.mesh.Names.Owner(), w.c.opts.Apply)
}

// compare compares the live rules with the wanted ones.
func (w *work) compare(ctx context.Context, rs ruleset.Ruleset) (machine.Rules, error) {
	diffs, err := podrules.Differences(ctx, w.backend, w.e.unusable, rs)
	switch {
	case err != nil:
		return 0, err
	case len(ruleset.Certain(diffs)) == 0:
		return machine.RulesSame, nil
	case rs.AllMissing(diffs):
		return machine.RulesNone, nil
	}
	return machine.RulesDiffer, nil
}

// leftOver looks for rules in a pod that is to be out. Without a sign of ours but the annotation, which anybody may have
// written, rules are ours only if they are exactly those that the pod would have: another mesh's may have the same names.
func (w *work) leftOver(ctx context.Context, ours bool) (machine.Rules, bool, error) {
	if ours {
		if d, ok := w.drain(); ok {
			rules, err := w.compare(ctx, d.rules)
			switch {
			case err != nil || rules == machine.RulesDiffer:
				return machine.RulesDiffer, true, err
			case rules == machine.RulesSame:
				return machine.RulesDraining, true, nil
			}
		}
		rules, err := w.compare(ctx, w.mesh.Names.Owner().EmptyRuleset())
		if err == nil && rules == machine.RulesSame {
			return machine.RulesNone, true, nil
		}
		return machine.RulesDiffer, true, err
	}
	would, err := w.mesh.Redirect(w.pod, w.namespace, w.addrs)
	if err != nil {
		return machine.RulesNone, false, nil // it could not have been captured
	}
	rs, err := would.Redirect.Ruleset()
	if err != nil {
		return machine.RulesNone, false, nil
	}
	rules, err := w.compare(ctx, rs)
	return rules, err == nil && rules == machine.RulesSame, err
}

// listening looks whether the proxy listens wherever the rules lead. What an address family leads to counts if the pod has
// an address of it and the kernel lets it be used.
func (w *work) listening() (bool, error) {
	ns := w.e.ns.NetNS()
	if w.needs == nil {
		kernel, err := apply.Kernel(ns)
		if err != nil {
			return false, err
		}
		var families []ruleset.Family
		for _, f := range w.plan.Captured {
			if kernel.Family(f) == redirect.PresenceUsable && slices.Contains(w.plan.Addressed, f) {
				families = append(families, f)
			}
		}
		w.needs = listeners.Needed(w.plan.Redirect, families)
	}
	missing, err := listeners.Missing(ns, w.needs, w.addrs)
	if err != nil {
		return false, err
	}
	w.missing = missing
	tunnel := w.plan.Redirect.Proxy.TunnelPort
	serves := func(n listeners.Need) bool { return !n.UDP && n.Port == tunnel && !slices.Contains(missing, n) }
	switch {
	case len(missing) == 0 || slices.ContainsFunc(w.needs, serves):
		w.e.deaf = time.Time{}
	case w.e.deaf.IsZero():
		w.e.deaf = time.Now()
	}
	return len(missing) == 0, nil
}

// Do implements [machine.Effects].
func (w *work) Do(ctx context.Context, act machine.Action) error {
	c, e := w.c, w.e
	switch act {
	case machine.WriteRules, machine.DrainRules, machine.RemoveRules, machine.SetSysctl, machine.Forget:
		defer w.visit.Since(time.Now())
	default:
	}
	switch act {
	case machine.ClearStatus, machine.SetPending:
		value := ""
		if act == machine.SetPending {
			value = w.mesh.NodeProxy.Pending
		}
		if w.Choice == machine.In {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, correctTimeout)
			defer cancel()
		}
		w.e.heard = time.Now()
		return w.tell(ctx, value)
	case machine.SetEnrolled:
		if !w.refuses {
			w.foretell()
		}
		return w.tell(ctx, w.mesh.NodeProxy.Enrolled)
	case machine.HandOver:
		return w.handOver(ctx)
	case machine.AwaitListeners:
		return w.await(ctx)
	case machine.SetSysctl:
		w.setMoves()
		return nil
	case machine.PutProbes:
		return w.exempt()
	case machine.WriteRules:
		return w.write(ctx)
	case machine.DrainRules:
		return w.drainRules(ctx)
	case machine.RemoveRules:
		if err := w.backend.Remove(ctx, w.mesh.Names.Owner()); err != nil {
			return err
		}
		c.drains(e, false)
		return nil
	case machine.TakeBack:
		return w.takeBack(ctx)
	case machine.DeleteProbes:
		return c.opts.Probes.Delete(e.uid)
	case machine.Forget:
		if w.Choice == machine.Out {
			if err := w.restoreSysctl(ctx); err != nil {
				return err
			}
		}
		if err := c.opts.Namespaces.Forget(e.uid); err != nil {
			return err
		}
		c.drains(e, false)
		e.ours, w.forgot, w.backend = false, true, nil // the backend is that of a namespace which is closed
		return c.setNS(e, nil)
	}
	return fmt.Errorf("no such action: %d", act)
}

// tellTimeout bounds the write of an annotation.
const tellTimeout = 5 * time.Second

// correctTimeout bounds the write of an annotation that says too much, since what is missing is mended only after it.
const correctTimeout = time.Second

// tell writes the annotation. A pod that is gone, or whose name another has by now, needs none.
func (w *work) tell(ctx context.Context, value string) error {
	if err := w.mayTell(value, time.Now()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	err := w.c.opts.Status.Annotate(ctx, w.pod, w.mesh.NodeProxy.StatusAnnotation, value)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	if w.told(value) {
		w.e.writes.count(time.Now())
	}
	w.e.told, w.e.toldOn = value, w.pod
	return nil
}

func (w *work) handOver(ctx context.Context) error {
	since, begin := w.c.proxies.Load(), time.Now()
	l := w.workload()
	l.NetNS = w.e.ns.NetNS()
	before := w.e.handed
	w.e.held, w.e.handed = heldYes, handed{} // also on failure: it is not known how far it came
	if err := w.c.opts.Proxy.Add(ctx, l); err != nil {
		if w.c.opts.Proxy.Ready() != nil { // it went away meanwhile, so what the last one had accepted is still all that is known
			w.e.handed = before
		}
		return err
	}
	w.c.metrics.handOver.Observe(time.Since(begin).Seconds())
	w.e.handed = handed{w.e.id(), since}
	return nil
}

// looks are the pauses between two looks for listeners. A look takes some 0.1 ms.
var looks = wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 50 * time.Millisecond}

// errDeaf says that listeners are missing, and not that they cannot be looked for.
var errDeaf = errors.New("the proxy accepted the pod and does not listen")

// await waits for the proxy's listeners.
func (w *work) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.c.opts.ListenTimeout)
	defer cancel()
	for pause := looks; ; {
		all, err := w.listening()
		if all || err != nil {
			return err
		}
		if !keeper.Sleep(ctx, pause.Step()) {
			return fmt.Errorf("%w on %s: %w", errDeaf, listeners.Words(w.missing), context.Cause(ctx))
		}
	}
}
