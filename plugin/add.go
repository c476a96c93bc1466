package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

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
	families []string
	warnings []string
	bypasses []string // stable codes
}

// The ways past the mesh that a decision's record names, besides "ipv4" and "ipv6" for a family of the pod's that is
// not captured.
const bypassProxyID = "proxy-id" // a container runs under an id by which the rules know the proxy

func (c *call) add(ctx context.Context) ([]byte, *types.Error) {
	output, err := c.config.PrevResult.in(c.config.CNIVersion)
	if err != nil {
		return nil, fail(types.ErrInvalidNetworkConfig, "network configuration: %v", err)
	}
	defer c.record(ctx)
	failure := c.redirected(ctx, func(b Backend, rules ruleset.Ruleset) *types.Error {
		result, err := b.Apply(ctx, rules)
		if err != nil {
			return c.inTime(ctx, codeOf(err, CodeApply, "apply rules of pod "+c.id.String()))
		}
		c.event.outcome = "redirected"
		if !result.Changed {
			c.event.outcome = "same"
		}
		if err := c.writeStatus(ctx); err != nil {
			// The pod is captured, which is what counts; who waits for the annotation goes on waiting, and can be told why.
			c.event.warnings = append(c.event.warnings, "status annotation: "+err.Error())
		}
		for _, f := range result.Skipped {
			c.event.families = slices.DeleteFunc(c.event.families, func(s string) bool { return s == f.String() })
			c.event.warnings = append(c.event.warnings, fmt.Sprintf("the kernel has no %s here", f))
		}
		return nil
	})
	if failure != nil {
		return nil, failure
	}
	return output, nil
}

func (c *call) check(ctx context.Context) *types.Error {
	defer c.record(ctx)
	return c.redirected(ctx, func(b Backend, rules ruleset.Ruleset) *types.Error {
		diffs, err := b.Check(ctx, rules)
		if err != nil {
			return c.inTime(ctx, codeOf(err, CodeApply, "check rules of pod "+c.id.String()))
		}
		if len(diffs) > 0 {
			lines := make([]string, len(diffs))
			for i, d := range diffs {
				lines[i] = d.String()
			}
			return hint(fail(CodeDiffers, "rules of pod %s differ: %s", c.id, strings.Join(lines, "; ")),
				"delete the pod to have it set up anew")
		}
		c.event.outcome = "checked"
		return nil
	})
}

// redirected calls do with what the pod should have, unless the pod is not in the mesh.
func (c *call) redirected(ctx context.Context, do func(Backend, ruleset.Ruleset) *types.Error) *types.Error {
	id, failure := parseArgs(c.env.args)
	if failure != nil {
		return failure
	}
	c.id = id
	mesh, err := c.Dialect(c.config.Dialect, c.config.ExcludeNamespaces)
	if err != nil {
		return codeOf(err, types.ErrInvalidNetworkConfig, "network configuration")
	}
	if decision, out := c.outByName(mesh.Policy); out {
		return c.pass(decision)
	}
	ns, err := c.OpenNetNS(c.env.netns)
	if err != nil {
		return codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	}
	defer func() { _ = ns.Close() }()
	// To look at the namespace takes about as long as the request, and needs none of its answer.
	chosen := start(func() (Backend, error) { return ns.Backend(ctx, c.config.Backend) })
	pod, namespace, failure := c.fetch(ctx, mesh)
	backend, err := chosen.wait()
	if failure != nil {
		return failure
	}
	decision := mesh.Decide(pod, namespace)
	c.decide(decision)
	if !decision.Selected {
		c.event.outcome = "passed"
		return nil
	}
	if err != nil {
		return c.inTime(ctx, codeOf(err, CodeApply, "choose firewall backend"))
	}
	c.event.backend = backend.Name()
	addrs, failure := c.addrs(ns)
	if failure != nil {
		return failure
	}
	built, err := mesh.Redirect(pod, namespace, addrs)
	c.event.warnings = append(c.event.warnings, built.Warnings...)
	if len(built.Bypasses) > 0 {
		c.event.bypasses = append(c.event.bypasses, bypassProxyID)
	}
	if err != nil {
		return hint(fail(types.ErrInvalidNetworkConfig, "%v", err), "correct the pod's annotations; the pod does not start without its rules")
	}
	if err := built.RefuseBypasses(); err != nil && c.config.RefuseProxyUID {
		return hint(fail(types.ErrInvalidNetworkConfig, "pod %s: %v", id, err), "refuse_proxy_uid is true in the network configuration")
	}
	rules, err := c.rules(built, addrs)
	if err != nil {
		return fail(types.ErrInternal, "render rules of pod %s: %v", id, err)
	}
	c.pod, c.applied = pod, mesh.Applied
	return do(backend, rules)
}

// outByName decides what needs no more than the runtime's words.
func (c *call) outByName(policy selection.Policy) (selection.Decision, bool) {
	id := c.id
	switch {
	case id.name == "" || id.namespace == "":
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
		_ = ns.Close()
	}
	if errors.Is(err, netnsexec.ErrHost) {
		return codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	}
	c.decide(decision)
	c.event.outcome = "passed"
	return nil
}

func (c *call) addrs(ns NetNS) ([]netip.Addr, *types.Error) {
	if prev := c.config.PrevResult; prev != nil && len(prev.Addrs) > 0 {
		return prev.Addrs, nil
	}
	addrs, err := ns.Addrs(c.env.ifName)
	if err != nil {
		return nil, codeOf(err, types.ErrInternal, "read addresses of pod "+c.id.String())
	}
	if len(addrs) == 0 {
		c.event.warnings = append(c.event.warnings, "the pod has no address yet, so it is taken to have IPv4 only")
	}
	return addrs, nil
}

// rules renders, after the families that the mesh leaves out have been dealt with.
func (c *call) rules(built dialect.Built, addrs []netip.Addr) (ruleset.Ruleset, error) {
	r := built.Redirect
	for _, f := range ruleset.Families {
		mode := &r.IPv4
		if f == ruleset.IPv6 {
			mode = &r.IPv6
		}
		has := slices.ContainsFunc(addrs, func(a netip.Addr) bool { return ruleset.FamilyOf(a) == f })
		if *mode == redirect.FamilyPass && has {
			if c.config.UncapturedFamily == UncapturedDrop {
				*mode = redirect.FamilyDrop
				c.event.warnings = append(c.event.warnings, fmt.Sprintf("%s is discarded: the mesh captures the other family only", f))
			} else {
				c.event.bypasses = append(c.event.bypasses, f.String())
				c.event.warnings = append(c.event.warnings, fmt.Sprintf("%s bypasses the mesh: the pod has such an address, and the mesh captures the other family only", f))
			}
		}
		if *mode == redirect.FamilyCapture {
			c.event.families = append(c.event.families, f.String())
		}
	}
	return r.Ruleset()
}

func (c *call) decide(d selection.Decision) {
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
		"backend", string(e.backend), "families", append([]string{}, e.families...), "warnings", brief.List(e.warnings, maxMessage),
		"bypasses", append([]string{}, e.bypasses...),
		"api_calls", e.apiCalls, "duration_ms", c.elapsed(),
	)
}
