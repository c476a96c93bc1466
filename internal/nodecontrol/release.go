package nodecontrol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// awaitStart waits until the node's pods are known.
func (c *Controller) awaitStart(ctx context.Context) error {
	select {
	case <-c.started:
		return nil
	default:
	}
	select {
	case <-c.started:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotSynced, context.Cause(ctx))
	}
}

// mode tells whether pods are given back, and to whom.
type mode struct {
	on bool
	// to is the agent that gets them; nil: they leave the mesh.
	to   *dialect.OtherAgent
	name string
	// by is until when a pod that leaves may be held back; zero: see Options.DrainTimeout alone.
	by time.Time
}

func (c *Controller) mode() mode {
	if m := c.released.Load(); m != nil {
		return *m
	}
	return mode{}
}

func (m mode) toWhom() string {
	if m.to == nil {
		return ""
	}
	return " to " + m.name
}

// Release takes all pods out of the proxy's care, and returns those that it could not take out before the context ended. From
// then on the controller captures none, until [Controller.Capture]. Each pod is held back as any that leaves, by Options.DrainTimeout, for
// at most 30 s, and until 5 s before the context's deadline. After that it waits 5 s for connections which the proxy goes on with,
// so that nothing is left of the rules; what of them is left later redirects nothing.
//
// With the name of another agent, one of [dialect.NodeProxy].Agents, it gives the pods to that agent instead: they stay
// captured, by rules in that agent's names, the proxy keeps them, and so does the annotation. An error says that a mesh does
// not know the agent.
func (c *Controller) Release(ctx context.Context, to string) ([]status.Pod, error) {
	m := mode{on: true, name: to}
	if to != "" {
		if m.to = c.agent(to); m.to == nil {
			return nil, fmt.Errorf("release pods: no mesh of this agent knows another agent %s", truncate.Quote(to))
		}
	}
	if err := c.awaitStart(ctx); err != nil {
		return nil, err
	}
	m.by = time.Now().Add(releaseHold)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-releaseMargin).Before(m.by) {
		m.by = deadline.Add(-releaseMargin)
	}
	c.setMode(&m)
	var drained <-chan time.Time
	for {
		left, drain, changed := c.unreleased()
		switch {
		case len(left) == 0 && !drain:
			return nil, nil
		case len(left) == 0 && drained == nil:
			timer := time.NewTimer(releaseMargin)
			defer timer.Stop()
			drained = timer.C
		}
		select {
		case <-changed:
		case <-drained:
			return left, nil
		case <-ctx.Done():
			return left, nil
		}
	}
}

// unreleased returns the pods that the proxy still has, or that may be captured, whether it carries connections of others, and what is
// closed when that changes.
func (c *Controller) unreleased() (left []status.Pod, drain bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries.All() {
		drain = drain || e.draining
		if !e.released || e.state.State != status.StateOutside || e.draining && e.shared {
			left = append(left, e.state)
		}
	}
	return left, drain, c.changed
}

// Capture ends what [Controller.Release] began: pods are captured again.
func (c *Controller) Capture() { c.setMode(nil) }

func (c *Controller) setMode(m *mode) {
	c.released.Store(m)
	c.mu.Lock()
	for _, e := range c.entries.All() {
		e.released = false
	}
	c.mu.Unlock()
	for _, uid := range c.uids() {
		c.queue.Forget(uid) // no backoff from before
		c.queue.Add(uid)
	}
}

// lookedAt notes whether a pod's state is about pods being given back.
func (c *Controller) lookedAt(e *entry, releasing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.released = releasing
}

// agent returns the agent of the name that a mesh with a proxy on the node knows, or nil.
func (c *Controller) agent(name string) *dialect.OtherAgent {
	for d := range c.opts.Meshes.All() {
		if p := d.NodeProxy; p != nil {
			if a, ok := p.Agents[name]; ok {
				return &a
			}
		}
	}
	return nil
}

// give gives a pod to another agent, and reports whether that is all that is to be done about it: a pod that is in the mesh is
// left to that agent from then on, and one that is to be out is taken out as ever.
func (c *Controller) give(ctx context.Context, w *work, m mode) (given bool, err error) {
	e := w.e
	if w.pod == nil || w.Choice == machine.Gone {
		return false, nil
	}
	if e.given {
		return true, nil
	}
	j := c.opts.Pods.Judgement(w.pod)
	p, err := j.Plan(w.addrs, redirect.Kernel{})
	switch {
	case j.Undecided(), errors.Is(err, redirect.ErrNamespaceUnknown):
		return true, err
	case !j.Selected() || j.Mesh.NodeProxy == nil || j.Mesh.NodeProxy.Agents[m.name].Rules == nil:
		return false, nil // not in the mesh, so it is not that agent's either
	case err != nil:
		return true, err
	}
	w.mesh, w.plan, w.namespace = j.Mesh, p, j.Namespace
	if err := w.find(ctx); err != nil {
		return true, fmt.Errorf("find its network namespace: %w", err)
	}
	if w.backend, err = w.choose(ctx); err != nil {
		return true, err
	}
	rules, err := w.compare(ctx, p.Ruleset)
	if err == nil && rules != machine.RulesNone {
		o := c.opts.Apply
		o.Backend = w.backend.Name()
		var theirs ruleset.Ruleset
		if theirs, err = m.rules(p.Redirect); err == nil {
			err = w.forgetRecord(statuscode.GivenAway)
		}
		if err == nil {
			_, err = apply.HandOver(ctx, e.ns.NetNS(), theirs, m.to.Layout, o)
		}
	}
	if err == nil {
		err = w.restoreSysctl(ctx)
	}
	if err != nil {
		return true, err
	}
	e.given, e.ours, e.captured, e.held, e.handed, e.backend = true, false, false, heldNo, handed{}, ""
	return true, errors.Join(c.opts.Namespaces.Forget(e.uid), c.setNS(e, nil))
}

// rules returns the other agent's rules. A function of the dialect's that panics keeps one pod from being given away.
func (m *mode) rules(r redirect.Redirect) (theirs ruleset.Ruleset, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("make the rules of the agent %s: its Rules panics: %v", m.name, v)
		}
	}()
	return m.to.Rules(r), nil
}

// finishGiving reports how giving a pod away ended.
func (c *Controller) finishGiving(w *work, m mode, err error) {
	s := status.Pod{ID: w.podOf(), State: status.StateOutside, Reason: statuscode.GivenAway, Detail: "the pod is in the care of the agent " + m.name}
	if err != nil {
		s.State, s.Reason, s.Detail = status.StateDrifted, statuscode.NotReleased, truncate.Finding(err.Error())
	}
	c.lookedAt(w.e, true)
	before := c.setState(w.e, s)
	c.tell(w, before, s, false, nil, err)
}

// Snapshot returns the pods that a proxy which has just come is to have: those that are to be captured, and those that may
// still be. One whose namespace is not known has no NetNS, so that the proxy keeps it if it has it. It waits until the node's
// pods are known; otherwise the error is that of the context. A NetNS is closed when the pod is given back.
func (c *Controller) Snapshot(ctx context.Context) (pods []nodeproxy.Workload, err error) {
	if err := c.awaitStart(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries.All() {
		if e.shared {
			pods = append(pods, e.share)
		}
	}
	return pods, nil
}
