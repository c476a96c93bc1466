package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// event is what the decision's record says.
type event struct {
	decision selection.Decision
	decided  bool
	outcome  string
	apiCalls int
	backend  apply.Name
	families []string // that have capturing rules in the kernel
	// addressed are the families of the pod's addresses.
	addressed []string
	warnings  []string
	bypasses  []string // stable codes
}

func (c *call) add(ctx context.Context) ([]byte, *types.Error) {
	output, err := c.config.PrevResult.in(c.config.CNIVersion)
	if err != nil {
		return nil, fail(types.ErrInvalidNetworkConfig, "network configuration: %v", err)
	}
	defer c.record(ctx)
	if failure := c.redirected(ctx); failure != nil {
		return nil, failure
	}
	c.remember()
	return output, nil
}

// redirected gives the pod its rules, unless it is not in the mesh.
func (c *call) redirected(ctx context.Context) *types.Error {
	id, failure := parseArgs(c.env.args)
	if failure != nil {
		return failure
	}
	c.id = id
	mesh, err := c.Dialect(c.config.Dialect, c.config.ExcludeNamespaces)
	if err != nil {
		return codeOf(err, types.ErrInvalidNetworkConfig, "network configuration")
	}
	mesh, pod, failure := c.forSandbox(mesh)
	if failure != nil {
		return failure
	}
	c.done.Dialect = mesh.Name
	if pod == nil {
		if decision, out := c.outByName(mesh.Policy); out {
			return c.pass(decision)
		}
	}
	ns, err := c.OpenNetNS(c.env.netns)
	if err != nil {
		return codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	}
	defer func() { _ = ns.Close() }()
	c.done.NetNS = recorded(c.env.netns, ns)
	// To look at the namespace takes about as long as the request, and needs none of its answer.
	looking := start(func() (found, error) { return c.look(ctx, ns) })
	var namespace *corev1.Namespace
	if pod == nil {
		pod, namespace, failure = c.fetch(ctx, mesh)
	}
	seen, err := looking.wait()
	if failure != nil {
		return c.passUnread(ctx, mesh.Policy, failure)
	}
	plan, refused := mesh.Plan(ctx, dialect.Subject{Pod: pod, Namespace: namespace, Addrs: seen.addrs, Kernel: seen.kernel}, c.config.planning())
	c.decide(plan.Decision)
	if !plan.Decision.Selected {
		c.event.outcome = "passed"
		return nil
	}
	if err != nil {
		return c.inTime(ctx, codeOf(err, CodeApply, "look at the network namespace of pod "+id.String()))
	}
	c.event.backend = seen.backend.Name()
	c.planned(plan, len(seen.addrs) > 0)
	if refused != nil {
		return c.inTime(ctx, c.refusal(refused))
	}
	c.pod, c.applied = pod, mesh.Applied
	return c.apply(ctx, seen.backend, plan.Ruleset)
}

// apply puts the rules in force.
func (c *call) apply(ctx context.Context, b Backend, rules ruleset.Ruleset) *types.Error {
	result, err := b.Apply(ctx, rules)
	if err != nil {
		return c.inTime(ctx, codeOf(err, CodeApply, "apply rules of pod "+c.id.String()))
	}
	c.event.outcome = "redirected"
	if !result.Changed {
		c.event.outcome = "same"
	}
	c.done.Applied(string(b.Name()), rules, result.Skipped, result.Left()...)
	if err := c.writeStatus(ctx); err != nil {
		// The pod is captured, which is what counts; who waits for the annotation goes on waiting, and can be told why.
		c.event.warnings = append(c.event.warnings, "status annotation: "+err.Error())
	}
	for _, f := range result.Skipped {
		c.event.families = slices.DeleteFunc(c.event.families, func(s string) bool { return s == f.String() })
	}
	for _, u := range result.Unusable {
		c.event.warnings = append(c.event.warnings, u.String())
	}
	return nil
}

// found is what a pod's namespace says before anything is done.
type found struct {
	backend Backend
	kernel  redirect.Kernel
	addrs   []netip.Addr
}

func (c *call) look(ctx context.Context, ns NetNS) (f found, err error) {
	if f.backend, err = ns.Backend(ctx, c.config.Backend); err != nil {
		return f, codeOf(err, CodeApply, "choose firewall backend")
	}
	if f.kernel, err = ns.Kernel(); err != nil {
		return f, codeOf(err, CodeApply, "network namespace of pod "+c.id.String())
	}
	if prev := c.config.PrevResult; prev != nil && len(prev.Addrs) > 0 {
		f.addrs = prev.Addrs
		return f, nil
	}
	if f.addrs, err = ns.Addrs(c.env.ifName); err != nil {
		return f, codeOf(err, types.ErrInternal, "read addresses of pod "+c.id.String())
	}
	return f, nil
}

// planning is what the operator has decided for all pods.
func (c Config) planning() dialect.Options {
	return dialect.Options{UncapturedFamily: c.UncapturedFamily, RefuseProxyUID: c.RefuseProxyUID}
}

// planned takes what the record says of a pod of the mesh.
func (c *call) planned(plan dialect.Plan, hasAddrs bool) {
	e := &c.event
	e.warnings = append(e.warnings, plan.Warnings...)
	for _, b := range plan.Bypasses {
		e.warnings = append(e.warnings, b.String())
	}
	if !hasAddrs {
		e.warnings = append(e.warnings, "the pod has no address yet, so a mesh that goes by addresses takes it for IPv4 only")
	}
	for _, code := range plan.Codes() {
		e.bypasses = append(e.bypasses, string(code))
	}
	for _, f := range plan.Captured {
		e.families = append(e.families, f.String())
	}
	for _, f := range plan.Addressed {
		e.addressed = append(e.addressed, f.String())
	}
}

// refusal is the failure of a pod that its mesh's plan refuses.
func (c *call) refusal(err error) *types.Error {
	var bypass *dialect.BypassError
	if errors.As(err, &bypass) {
		return hint(fail(types.ErrInvalidNetworkConfig, "%v", err), "refuse_proxy_uid is true in the network configuration")
	}
	return hint(fail(types.ErrInvalidNetworkConfig, "%v", err), "%s", c.toCorrect())
}

// outByName decides what needs no more than the runtime's words.
func (c *call) outByName(policy selection.Policy) (selection.Decision, bool) {
	id := c.id
	switch {
	case !id.isPod():
		return selection.Decision{Reason: selection.NotKubernetes, Detail: "CNI_ARGS names no pod"}, true
	case id.namespace == c.config.PodNamespace && strings.HasPrefix(id.name, c.AgentPrefix):
		return selection.Decision{Reason: selection.AgentPod, Detail: "pod " + id.String() + " is the node agent's own"}, true
	case policy.ExcludesNamespace(id.namespace):
		return selection.Decision{
			Reason: selection.ExcludedNamespace, Detail: fmt.Sprintf("namespace %q is excluded", id.namespace),
		}, true
	case c.config.Annotations != nil:
		return policy.RuleOut(c.config.Annotations)
	}
	return selection.Decision{}, false
}

// pass lets a pod through. The host's namespace is refused even so, as every plugin built with the CNI library does:
// it tells that the runtime has mixed up its pods. What else may be wrong with the path is no concern of this plugin.
func (c *call) pass(decision selection.Decision) *types.Error {
	ns, err := c.OpenNetNS(c.env.netns)
	if err == nil {
		c.done.NetNS = recorded(c.env.netns, ns)
		_ = ns.Close()
	}
	if errors.Is(err, netnsexec.ErrHost) {
		return codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	}
	c.decide(decision)
	c.event.outcome = "passed"
	return nil
}

func (c *call) decide(d selection.Decision) {
	if c.asked != "" {
		d.Detail = "CNI_ARGS has " + c.asked
	}
	c.event.decision, c.event.decided = d, true
	c.event.warnings = append(c.event.warnings, d.Warnings...)
}

// inTime makes a failure one of time when time is over: whatever broke, broke because of that.
func (c *call) inTime(ctx context.Context, e *types.Error) *types.Error {
	if ctx.Err() != nil && e.Code != types.ErrTryAgainLater {
		return &types.Error{Code: types.ErrTryAgainLater, Msg: c.expired(ctx) + ": " + e.Msg, Details: e.Details}
	}
	return e
}

// record writes the one line about the decision, if there was one.
func (c *call) record(ctx context.Context) {
	e := &c.event
	if !e.decided {
		return
	}
	if e.outcome == "" {
		e.outcome = "failed"
	}
	c.logger().InfoContext(ctx, "decision",
		"reason", string(e.decision.Reason), "selected", e.decision.Selected, "detail", brief.Text(e.decision.Detail, maxMessage),
		"outcome", e.outcome, "verb", c.env.command,
		"pod", c.id.name, "namespace", c.id.namespace, "uid", c.id.uid,
		"container_id", c.env.containerID, "netns", c.env.netns,
		"backend", string(e.backend), "families", append([]string{}, e.families...),
		"address_families", append([]string{}, e.addressed...), "warnings", brief.List(e.warnings, maxMessage),
		"bypasses", append([]string{}, e.bypasses...),
		"api_calls", e.apiCalls, "duration_ms", c.elapsed(),
	)
}
