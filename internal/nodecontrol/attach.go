package nodecontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

const (
	// podTimeout bounds the wait for a pod that the plugin knows and the agent does not yet: what a watch lags behind.
	podTimeout = 5 * time.Second
	// undoTimeout bounds what is done after an Attach has failed, when its own time may be over.
	undoTimeout = 10 * time.Second
)

// The steps of an Attach that fail before the machine's own; see machine.Steps for those.
const (
	stepAgent     = agentsock.StepAgent
	stepPod       = "pod"
	stepSelection = "selection"
	stepNamespace = "namespace"
)

// Attach captures a pod that is being set up: the handler of that request of [agentsock.Handler]. It returns once the proxy
// listens in the pod and the rules are in force; the annotation follows. While no proxy is connected, it waits for one, as long as
// the Attachment's Patience allows. An error is an [*agentsock.StepError], and the namespace is as it was.
func (c *Controller) Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (done agentsock.Attached, err error) {
	defer func() { _ = ns.Close() }()
	patient, cancel := ctx, func() {}
	if a.Patience > 0 {
		patient, cancel = context.WithTimeout(ctx, a.Patience)
	}
	defer cancel()
	if c.mode().on {
		return done, releasing()
	}
	if err := c.awaitStart(patient); err != nil {
		return done, &agentsock.StepError{Step: stepAgent, Reason: statuscode.NotSynced, Err: err}
	}
	pod, err := c.awaitPod(patient, a.Pod)
	if err != nil {
		return done, &agentsock.StepError{Step: stepPod, Reason: statuscode.UnknownPod, Err: err}
	}
	for {
		if a.Patience > 0 {
			if err := c.awaitProxy(ctx, patient, c.uidOf(pod)); err != nil {
				return done, err
			}
		}
		var step *agentsock.StepError
		done, err = c.attach(ctx, a, pod, ns)
		if !errors.As(err, &step) || step.Reason != statuscode.NodeProxyGone || a.Patience <= 0 || patient.Err() != nil {
			return done, err
		}
	}
}

func releasing() error {
	return &agentsock.StepError{Step: stepAgent, Reason: statuscode.Releasing, Err: ErrReleasing}
}

// proxyAgain is the interval at which a waiting Attach looks whether a proxy is connected.
const proxyAgain = 20 * time.Millisecond

// awaitProxy waits until a proxy can take pods, or patient ends. It holds nothing meanwhile, so that the pod can leave, or go.
func (c *Controller) awaitProxy(ctx, patient context.Context, uid types.UID) error {
	for {
		err := c.opts.Proxy.Ready()
		switch {
		case err == nil:
			return nil
		case c.mode().on:
			return releasing()
		case ctx.Err() != nil:
			return &agentsock.StepError{Step: stepAgent, Reason: statuscode.AgentEnds, Err: context.Cause(ctx)} // or nobody reads the answer
		case c.pod(uid) == nil:
			return &agentsock.StepError{Step: stepPod, Reason: statuscode.UnknownPod, Err: agentsock.ErrUnknown}
		case !keeper.Sleep(patient, proxyAgain) && ctx.Err() == nil:
			return &agentsock.StepError{Step: machine.HandOver.String(), Reason: statuscode.NodeProxyGone, Err: err}
		}
	}
}

// attach is Attach with whatever proxy there is.
func (c *Controller) attach(ctx context.Context, a agentsock.Attachment, pod *corev1.Pod, ns *os.File) (done agentsock.Attached, err error) {
	e := c.entry(c.uidOf(pod))
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	before := e.addrs
	e.addrs = a.Addrs
	w := &attaching{work: &work{c: c, e: e, want: c.want(ctx, e), starting: true}}
	if w.plan.Decision.Selected && !slices.Equal(w.addrs, a.Addrs) { // the API server may know fewer yet
		w.addrs, w.Probes = a.Addrs, c.opts.Probes != nil
		c.decide(ctx, &w.want)
	}
	if err := w.selects(a); err != nil {
		e.addrs = before
		return done, err
	}
	return w.attach(ctx, a, ns)
}

// awaitPod waits until the pod that the runtime means is in the cache, and its namespace, which for the first pod of a namespace on the node
// comes later. A namespace that does not come is for the decision to complain of.
func (c *Controller) awaitPod(ctx context.Context, id status.ID) (*corev1.Pod, error) {
	if pod := c.opts.Pods.Known(id); pod != nil && c.knowsNamespace(pod) {
		return pod, nil
	}
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	changed := make(chan struct{}, 1)
	defer c.opts.Pods.Subscribe(func(types.UID) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		pod := c.opts.Pods.Known(id)
		if pod != nil && c.knowsNamespace(pod) {
			return pod, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if pod != nil {
				return pod, nil
			}
			return nil, agentsock.ErrUnknown
		}
	}
}

// knowsNamespace reports whether the pod's namespace can be had, or no mesh asks for it.
func (c *Controller) knowsNamespace(pod *corev1.Pod) bool {
	j := c.opts.Pods.Judgement(pod)
	if j.Namespace != nil {
		return true
	}
	_, err := j.Plan(nil, redirect.Kernel{})
	return !errors.Is(err, redirect.ErrNamespaceUnknown)
}

// attaching is the work of an Attach. Nothing runs in the pod yet, so what this run does itself is what is the case: only
// what has been done is seen, and the kernel is not asked again what each step made sure of.
type attaching struct {
	*work

	handedOver, listens, moved, exempt bool
}

// selects checks that the agent agrees with the plugin about the pod.
func (w *attaching) selects(a agentsock.Attachment) error {
	switch {
	case w.Choice != machine.In:
		return &agentsock.StepError{Step: stepSelection, Reason: w.Why, Err: errSelection(w.want)}
	case w.mesh.Name != a.Dialect:
		return &agentsock.StepError{Step: stepSelection, Reason: statuscode.OtherMesh, Err: fmt.Errorf("the pod is in mesh %s, and not in %s", w.mesh.Name, a.Dialect)}
	}
	return nil
}

// before is a pod's state before an Attach, so that a failure can leave it so.
type before struct {
	noted, captured bool
	held            held
	exempt          []netip.Addr
}

func (w *attaching) attach(ctx context.Context, a agentsock.Attachment, f *os.File) (done agentsock.Attached, err error) {
	c, e := w.c, w.e
	was := before{noted: e.ns != nil || slices.Contains(c.opts.Namespaces.Known(), e.uid), captured: e.captured, held: e.held}
	if c.opts.Probes != nil {
		entries, err := c.opts.Probes.Entries()
		if err != nil {
			return done, &agentsock.StepError{Step: machine.PutProbes.String(), Reason: statuscode.ProbesFailed, Err: err}
		}
		was.exempt = addrsWith(entries, e.uid)
	}
	ref, err := c.opts.Namespaces.Put(a, f)
	if err == nil && e.id() != ref.NetNS().ID() {
		was.captured = false // that was another sandbox
	}
	if err == nil {
		err = c.setNS(e, ref)
	}
	if err != nil {
		return done, &agentsock.StepError{Step: stepNamespace, Reason: statuscode.NamespaceFailed, Err: err}
	}
	e.captured = was.captured
	e.followed = machine.In // an ADD is not held back, and is no turn
	c.publish(w.work)
	if w.backend, err = w.choose(ctx); err != nil {
		err = &machine.StepError{Step: machine.WriteRules.String(), Err: err}
	}
	wanted := w.Wanted
	wanted.Status = false // whoever waits for the pod need not wait for the API server
	var last machine.Actual
	if err == nil {
		_, last, _, err = machine.Run(ctx, wanted, w)
	}
	if err == nil && !last.Captured() {
		err = &machine.StepError{Step: machine.HandOver.String(), Err: errors.New("the proxy does not have the pod")}
	}
	if err == nil && ctx.Err() != nil {
		err = &machine.StepError{Step: machine.WriteRules.String(), Err: context.Cause(ctx)} // nobody reads the answer
	}
	if err != nil {
		return done, w.failed(ctx, was, err)
	}
	c.mu.Lock()
	c.attached[a.ID] = attachedTo{e.uid, e.id()}
	c.mu.Unlock()
	w.e.captured = false // so that it counts as one that has joined
	c.finish(w.work, machine.Actual{}, last, true, nil)
	c.queue.Add(e.uid)
	return agentsock.Attached{
		Backend: w.result.Backend, Changed: w.result.Changed,
		Rules: w.plan.Ruleset, Skipped: w.result.Skipped, Unusable: w.result.Left(),
	}, nil
}

// failed undoes what was done, and says what failed.
func (w *attaching) failed(ctx context.Context, was before, err error) error {
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	reason := w.reasonOf(err)
	w.c.metrics.failed(err)
	if errUndo := w.undo(undoing, was); errUndo != nil {
		err = errors.Join(err, fmt.Errorf("undo: %w", errUndo))
	}
	w.e.captured = was.captured
	w.c.queue.AddRateLimited(w.e.uid) // the runtime may give up, and the pod may have another network
	before := w.c.setState(w.e, status.Pod{
		ID: w.podOf(), Dialect: w.mesh.Name, State: status.StateWaiting, Reason: reason, Detail: err.Error(),
	})
	w.c.tell(w.work, before, status.Pod{ID: w.podOf(), State: status.StateWaiting, Reason: reason}, false, nil, err)
	step := &machine.StepError{Step: machine.HandOver.String()}
	if !errors.As(err, &step) {
		step.Err = err
	}
	return &agentsock.StepError{Step: step.Step, Reason: reason, Err: step.Err}
}

// reasonOf returns the code of a failure: that no proxy is there explains all others.
func (w *attaching) reasonOf(err error) status.Code {
	if errors.Is(err, nodeproxy.ErrNoProxy) || w.c.opts.Proxy.Ready() != nil && !w.handedOver {
		return statuscode.NodeProxyGone
	}
	return reasonOf(err, statuscode.NotHandedOver)
}

// Observe implements [machine.Effects].
func (w *attaching) Observe(context.Context) (machine.Actual, error) {
	a := machine.Actual{
		Namespace: true, Noted: true, Ours: true, Held: true,
		Proxy:  true, // if there is none, the hand-over says why
		Handed: w.handedOver, Listening: w.listens, Moves: w.moved, Exempt: w.exempt, AnyExempt: w.exempt,
	}
	if w.result != nil {
		a.Rules = machine.RulesSame
	}
	return a, nil
}

// Do implements [machine.Effects].
func (w *attaching) Do(ctx context.Context, act machine.Action) error {
	if act == machine.WriteRules && w.result == nil {
		w.e.captured = false // an ADD is not held back
	}
	if err := w.work.Do(ctx, act); err != nil {
		return err
	}
	switch act {
	case machine.HandOver:
		w.handedOver = true
	case machine.AwaitListeners:
		w.listens = true
	case machine.SetSysctl:
		w.moved = true
	case machine.PutProbes:
		w.exempt = true
	default:
	}
	return nil
}

// Detach says that an attachment is gone, as [agentsock.Handler] does. The pod is given back if it was the last of the
// namespace that the pod has now: a runtime may remove an earlier sandbox after it made the next.
func (c *Controller) Detach(ctx context.Context, id attachment.ID) error {
	c.mu.Lock()
	to, known := c.attached[id]
	delete(c.attached, id)
	for _, other := range c.attached {
		known = known && other != to
	}
	c.mu.Unlock()
	if !known {
		return nil
	}
	e := c.entry(to.uid)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ns != nil && e.id() != to.ns {
		return nil
	}
	w := &work{c: c, e: e, want: c.want(ctx, e)}
	w.Wanted = machine.Wanted{Choice: machine.Gone, Probes: w.Probes, Status: w.Status}
	w.Why, w.detail = statuscode.Detached, "the runtime removed the pod's network"
	first, last, seen, err := machine.Run(ctx, w.Wanted, w)
	c.finish(w, first, last, seen, err)
	c.queue.Add(e.uid)
	if err != nil {
		return fmt.Errorf("give back pod %s/%s: %w", w.id.Namespace, w.id.Name, err)
	}
	return nil
}
