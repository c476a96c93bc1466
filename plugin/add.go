package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// add captures the pod, unless it is outside the mesh, and returns the previous plugin's result.
func (r *run) add(ctx context.Context) (output []byte, e Event, failure *types.Error) {
	defer r.rescue(&failure)
	output, err := r.prev.in(r.config.CNIVersion)
	if err != nil {
		return nil, e, fail(types.ErrInvalidNetworkConfig, "network configuration: %v", err)
	}
	done, failure := r.capture(ctx)
	e = done.event()
	if failure != nil {
		return nil, e, failure
	}
	if err := r.remember(done); err != nil {
		e.Warnings = append(e.Warnings, warning.Warning{Code: warningNotWritten, Text: err.Error()})
	}
	return output, e, nil
}

// captured holds the results of an ADD's steps. Those that it did not reach are zero.
type captured struct {
	mesh     string       // the one that has the pod, or the only one
	netns    netnsexec.ID // zero: it was not opened
	answer   answer
	decision selection.Decision
	plan     dialect.Plan
	backend  ruleset.Backend
	result   apply.Result
	kernel   redirect.Kernel
	left     []string // what the agent could not set up, besides the result's
	outcome  Outcome
	patched  int          // requests that wrote to the pod
	warnings warning.List // besides those of the decision, the plan and the result
}

// capture redirects the pod or passes it over. After a failure or a panic, done still says how far it got.
func (r *run) capture(ctx context.Context) (done captured, failure *types.Error) {
	defer r.rescue(&failure)
	t, failure := r.identify()
	if failure != nil {
		return done, failure
	}
	if names := t.meshes.Names(); len(names) == 1 {
		done.mesh = names[0]
	}
	if decision, out := r.outByName(t); out {
		return r.passUnopened(done, decision)
	}
	ns, err := r.OpenNetNS(r.netns)
	if err != nil {
		return done, codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	}
	defer func() { _ = ns.Close() }()
	done.netns = ns.ID()

	// To look at the namespace takes about as long as the request, and needs none of its answer; nor does what is wrong with a mesh.
	var (
		seen     found
		unseen   error
		invalid  error
		panicked *netnsexec.PanicError
		looking  sync.WaitGroup
	)
	looking.Go(func() { seen, unseen = r.look(ctx, ns, t) })
	looking.Go(func() { invalid = dialect.Validate(slices.Collect(t.meshes.All())) })
	done.answer = r.fetch(ctx, t)
	looking.Wait()
	if errors.As(unseen, &panicked) {
		panic(panicked)
	}
	if invalid != nil {
		return done, t.refusal(r.config, dialect.Plan{}, invalid)
	}
	if done.answer.failure != nil {
		if done.decision, failure = r.presume(ctx, t, done.answer); failure == nil {
			done.outcome = Passed
		}
		return done, failure
	}

	plan, refused := t.meshes.Plan(dialect.Subject{Pod: done.answer.pod, Namespace: done.answer.namespace, Addrs: seen.addrs, Kernel: seen.kernel})
	done.decision, done.plan.Answers = t.explain(plan.Decision), plan.Answers
	switch {
	case refused == nil && !plan.Decision.Selected:
		done.outcome = Passed
		return done, nil
	case unseen != nil:
		return done, r.inTime(ctx, codeOf(unseen, codeApply, "look at the network namespace of pod "+t.name))
	}
	done.kernel = seen.kernel
	done.backend, done.plan, done.mesh = seen.backend.Name(), plan, plan.Dialect
	if len(seen.addrs) == 0 {
		done.warnings = append(done.warnings, warning.New(warning.Fallback, "",
			"the pod has no address yet, so a mesh that goes by addresses takes it for IPv4 only"))
	}
	if refused != nil {
		return done, r.inTime(ctx, t.refusal(r.config, plan, refused))
	}
	mesh := t.meshes.Lookup(plan.Dialect)
	if mesh.NodeProxy != nil {
		failure = r.attach(ctx, &done, plan.Dialect, ns, seen.addrs)
		return done, failure
	}

	if seen.beside.IsValid() && slices.Contains(plan.Captured, ruleset.IPv4) {
		done.warnings = append(done.warnings, warning.New(warningBeside, "", "the pod's addresses are IPv6 alone, and its network gives it %s beside them, by which IPv4 connections are "+
			"captured too: a proxy that listens on IPv6 alone, as Istio's does then, refuses them; leave them out, in Istio by the annotation "+
			"traffic.sidecar.istio.io/excludeOutboundIPRanges with 0.0.0.0/0, or let the proxy listen on IPv4", seen.beside))
	}
	ready := r.prepare()
	done.result, err = seen.backend.Apply(ctx, plan.Ruleset)
	ready()
	if err != nil {
		var limit error
		if strings.HasPrefix(string(done.backend), string(ruleset.BackendIptables)) {
			limit = dialect.Reading{Origins: plan.Origins}.Blame(plan.Redirect.Iptables())
		}
		switch {
		case limit != nil && r.config.Backend == netconf.DefaultBackend: // and nftables has failed too
			err = errors.Join(limit, err)
		case limit != nil:
			return done, r.inTime(ctx, t.refusal(r.config, plan, fmt.Errorf("pod %s: %w", t.name, limit)))
		}
		return done, r.inTime(ctx, codeOf(err, codeApply, "apply rules of pod "+t.name))
	}
	if done.result.Refused != nil {
		done.backend = done.result.Backend
		done.warnings = append(done.warnings, warning.New(warning.Fallback, "", "another backend applied the rules, since what comes before it refused them: %v", truncate.Error(done.result.Refused, 1<<10)))
	}
	if err := done.result.Bypassed(); err != nil {
		return done, hint(codeOf(err, codeApply, "redirect pod "+t.name),
			"another plugin of the node's list, or what came into the namespace before, has written the rule that is named: it has to go, or to come after ours")
	}
	for _, d := range done.result.Past {
		done.warnings = append(done.warnings, warning.New(warningCannotTell, "", "%s", d))
	}
	done.outcome = Redirected
	if !done.result.Changed {
		done.outcome = Same
	}
	if done.patched, err = r.writeStatus(ctx, done.answer.pod, mesh.Applied); err != nil {
		// The pod is captured, which is what counts. Whoever waits for the annotation can be told why it is missing.
		done.warnings = append(done.warnings, warning.New(warningNotWritten, "", "status annotation: %v", err))
	}
	return done, nil
}

// outByName decides about pods for which what the runtime passed is enough.
func (r *run) outByName(t target) (selection.Decision, bool) {
	id := r.pod
	switch {
	case t.pod != nil:
		return selection.Decision{}, false
	case !id.isPod():
		return selection.Decision{Reason: status.CodeNotKubernetes, Detail: "CNI_ARGS names no pod"}, true
	case id.namespace == r.config.PodNamespace && strings.HasPrefix(id.name, r.Identity.AgentPrefix()):
		return selection.Decision{Reason: status.CodeAgentPod, Detail: "pod " + id.String() + " is the node agent's own"}, true
	case t.meshes.ExcludesNamespace(id.namespace):
		return selection.Decision{
			Reason: status.CodeExcludedNamespace, Detail: fmt.Sprintf("namespace %q is excluded", id.namespace),
		}, true
	case r.config.Annotations != nil:
		return t.meshes.RuleOut(r.config.Annotations)
	}
	return selection.Decision{}, false
}

// passUnopened lets a pod through by name. It still refuses the host's namespace, as every plugin built with the CNI
// library does, because the runtime has then confused its pods. Any other problem with the path does not matter here.
func (r *run) passUnopened(done captured, decision selection.Decision) (captured, *types.Error) {
	ns, err := r.OpenNetNS(r.netns)
	if errors.Is(err, netnsexec.ErrHost) {
		return done, codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	}
	if err == nil {
		done.netns = ns.ID()
		_ = ns.Close()
	}
	done.decision, done.outcome = decision, Passed
	return done, nil
}

// found is the state of the pod's network namespace before anything is done.
type found struct {
	backend Backend
	kernel  redirect.Kernel
	addrs   []netip.Addr
	// beside is an IPv4 address that the network gives a pod of IPv6 alone without naming it, as on EKS; invalid: there is none.
	beside netip.Addr
}

// look runs in a goroutine of its own, so it returns a panic as a *netnsexec.PanicError.
func (r *run) look(ctx context.Context, ns NetNS, t target) (f found, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = asPanic(v)
		}
	}()
	if k, ok := ns.(kernelNetNS); ok && (r.config.Backend == netconf.DefaultBackend || r.config.Backend == netconf.Backend(ruleset.BackendIptables)) {
		k.broken, _ = backends.Read(r.config.RunDir, ruleset.Backend(r.config.Backend))
		ns = k
	}
	if f.backend, err = ns.Backend(ctx, ruleset.Backend(r.config.Backend)); err != nil {
		return f, codeOf(err, codeApply, "choose firewall backend")
	}
	if f.kernel, err = ns.Kernel(); err != nil {
		return f, codeOf(err, codeApply, "network namespace of pod "+t.name)
	}
	if r.prev != nil && len(r.prev.addrs) > 0 {
		f.addrs = r.prev.addrs
		if k, ok := ns.(kernelNetNS); ok && !slices.ContainsFunc(f.addrs, netip.Addr.Is4) {
			f.beside = k.linkLocalIPv4()
		}
		return f, nil
	}
	if f.addrs, err = ns.Addrs(r.attachment.IfName); err != nil {
		return f, codeOf(err, types.ErrInternal, "read addresses of pod "+t.name)
	}
	return f, nil
}

// presume lets through a pod that could not be read if, according to the runtime, it has none of the annotations that the
// mesh's injector always writes. Otherwise a node without credentials could not start the very pods that would bring them,
// such as those of the network or of storage. It does not apply if the server answered that the pod does not exist or has
// another UID.
func (r *run) presume(ctx context.Context, t target, a answer) (selection.Decision, *types.Error) {
	decision, out := t.meshes.PresumeOut(r.config.Annotations)
	if !out || !a.unread || errors.Is(ctx.Err(), context.Canceled) {
		return selection.Decision{}, a.failure
	}
	decision.Warnings = append(decision.Warnings, warning.New(warning.Fallback, "",
		"the pod could not be read, so its annotations decide: %s", a.failure.Msg))
	return t.explain(decision), nil
}

// inTime turns a failure after the deadline into one that asks the runtime to try again.
func (r *run) inTime(ctx context.Context, e *types.Error) *types.Error {
	if ctx.Err() != nil && e.Code != types.ErrTryAgainLater {
		return &types.Error{Code: types.ErrTryAgainLater, Msg: r.expired(ctx) + ": " + e.Msg, Details: e.Details}
	}
	return e
}

// expired describes the deadline that has passed.
func (r *run) expired(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return fmt.Sprintf("not done within add_deadline %s", r.config.AddDeadline)
}
