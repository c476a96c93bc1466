package dialect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// Subject is a pod and what has been found out about it.
type Subject struct {
	// Pod is required.
	Pod *corev1.Pod
	// Namespace is the pod's, where the dialect needs it; see [Dialect.ReadsNamespace].
	// nil: its settings count as absent.
	Namespace *corev1.Namespace
	// Addrs are all of the pod's addresses, its primary one first. Empty: not
	// known, and taken for IPv4 only.
	Addrs []netip.Addr
	// Kernel is what the pod's network namespace has. It decides what is said,
	// never what the rules are: a family may come up later. Zero: not known.
	Kernel redirect.Kernel
}

// Options are what an operator has decided for all pods. Zero is the default.
type Options struct {
	// UncapturedFamily says what happens to an address family that the mesh does
	// not capture.
	UncapturedFamily redirect.UncapturedFamily
	// RefuseProxyUID refuses a pod with a container that the rules may take for
	// the proxy: one that runs as it, or that may set its mark. A family's
	// bypass refuses no pod: UncapturedFamily closes it.
	RefuseProxyUID bool
}

// Plan is all that a mesh means for a pod.
type Plan struct {
	// Decision says whether the pod is in the mesh. What follows is that of a
	// pod which is.
	Decision selection.Decision
	// Redirect is the pod's, with the uncaptured families dealt with, and
	// Ruleset its rules.
	Redirect redirect.Redirect
	Ruleset  ruleset.Ruleset
	// Origins say where each setting comes from.
	Origins []redirect.Origin
	// Warnings are what the pod's settings say in vain or get wrong without being
	// refused for it. Neither the decision's are among them nor the bypasses.
	Warnings []string
	// Bypasses are the ways past the mesh that the pod leaves open.
	Bypasses []Bypass
	// Captured are the families that the rules redirect and the kernel has; one
	// that is not known to be absent counts. Addressed are those of the pod's
	// addresses. Either may hold what the other does not: addresses may come
	// later, and a family may be left out.
	Captured, Addressed []ruleset.Family
}

// Plan decides: whether the pod is in the mesh, what its rules are, and what
// leaves it past them. Whoever captures, compares, repairs or explains a pod
// asks here, so that all decide alike. It reads nothing but its arguments.
//
// An error refuses the pod; the Plan then has the decision, and the warnings
// and bypasses as far as they are known. It is that of [Dialect.Redirect], or
// has a [*BypassError] for each container that options refuse (errors.As), or
// is the context's when that ends.
func (d Dialect) Plan(ctx context.Context, s Subject, o Options) (Plan, error) {
	p := Plan{Decision: d.Decide(s.Pod, s.Namespace)}
	if !p.Decision.Selected {
		return p, nil
	}
	if ctx.Err() != nil {
		return p, context.Cause(ctx)
	}
	b, err := d.Redirect(s.Pod, s.Namespace, s.Addrs)
	p.Warnings = b.Warnings
	if err != nil {
		return p, err
	}
	own := slices.Concat(d.Policy.ProxyContainers, b.ProxyContainers)
	p.Bypasses = containerBypasses(s.Pod, own, b.Redirect.Proxy)
	if o.RefuseProxyUID {
		if err := refusal(p.Bypasses); err != nil {
			return p, fmt.Errorf("pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
		}
	}
	p.Redirect, p.Origins = b.Redirect, b.Origins
	p.families(s, o)
	if ctx.Err() != nil {
		return p, context.Cause(ctx)
	}
	if p.Ruleset, err = p.Redirect.Ruleset(); err != nil {
		// A family that is dropped may be what is past the bound.
		return p, fmt.Errorf("rules of pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, b.Blame(err))
	}
	return p, nil
}

// families deals with those that the mesh leaves out, and says which are captured.
func (p *Plan) families(s Subject, o Options) {
	for _, f := range ruleset.Families {
		mode := &p.Redirect.IPv4
		if f == ruleset.IPv6 {
			mode = &p.Redirect.IPv6
		}
		has := slices.IndexFunc(s.Addrs, func(a netip.Addr) bool { return ruleset.FamilyOf(a) == f })
		if has >= 0 {
			p.Addressed = append(p.Addressed, f)
		}
		there := s.Kernel.Family(f)
		switch *mode {
		case redirect.FamilyCapture:
			if there == redirect.PresenceAbsent {
				p.Warnings = append(p.Warnings, fmt.Sprintf("the kernel has no %s here", f))
				continue
			}
			p.Captured = append(p.Captured, f)
		case redirect.FamilyPass:
			if o.UncapturedFamily == redirect.UncapturedDrop {
				// Also where the kernel has it not, or not now: that may change, and rules without a protocol are skipped.
				*mode = redirect.FamilyDrop
				if has >= 0 {
					p.Warnings = append(p.Warnings, fmt.Sprintf("%s is discarded: the mesh captures the other family only", f))
				}
				continue
			}
			if there == redirect.PresenceAbsent || there == redirect.PresenceOff && has < 0 {
				continue
			}
			b := Bypass{Code: BypassCode(f.String()), Unsure: there == redirect.PresenceUnknown && has < 0}
			if has >= 0 {
				b.Addr = s.Addrs[has]
			}
			p.Bypasses = append(p.Bypasses, b)
		case redirect.FamilyDrop: // by the mesh itself
		}
	}
}

// Codes are those of the bypasses, each once.
func (p Plan) Codes() []BypassCode {
	var codes []BypassCode
	for _, b := range p.Bypasses {
		if !slices.Contains(codes, b.Code) {
			codes = append(codes, b.Code)
		}
	}
	return codes
}

// refusal has an error for each bypass that options can refuse; nil when there
// is none.
func refusal(bypasses []Bypass) error {
	var errs []error
	for _, b := range bypasses {
		if b.Container != "" {
			errs = append(errs, &BypassError{b})
		}
	}
	return errors.Join(errs...)
}
