package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// Subject is a pod and what is known about it.
type Subject struct {
	// Pod is required.
	Pod *corev1.Pod
	// Namespace is the pod's. It is required where the dialect needs it (see [Dialect.ReadsNamespace]): without it such a pod is
	// refused.
	Namespace *corev1.Namespace
	// Addrs are all of the pod's addresses, its primary one first. Empty: not known, which counts as IPv4 only.
	Addrs []netip.Addr
	// Kernel lists the address families of the pod's network namespace; zero: not known. It decides
	// about warnings and bypasses, never about rules: a family may come up later.
	Kernel redirect.Kernel
}

// Options are an operator's choices for all pods. The zero value is the default.
type Options struct {
	// UncapturedFamily is the treatment of an address family that the mesh does not capture.
	UncapturedFamily redirect.UncapturedFamily
	// RefuseProxyUID refuses a pod with a container that the rules may take for the proxy: it runs as the proxy's user
	// or group, or may set its mark. An init container that ends may run as that user if no proxy has started before it. Where the proxy is on the node ([Dialect.NodeProxy]), a container that has only what
	// container runtimes give to everyone is no reason: nearly every pod has one. Families that bypass the mesh refuse no
	// pod; UncapturedFamily closes them.
	RefuseProxyUID bool
	// RefuseNetRaw refuses a pod with a container that may set the proxy's mark, also by the runtime's default.
	RefuseNetRaw bool
	// AllowSandboxed lets a pod start whose RuntimeClass is among the SandboxedClasses: its traffic bypasses the mesh. Else it is refused.
	AllowSandboxed bool
	// SandboxedClasses are names of RuntimeClasses, or words in them between "-" and ".", of runtimes that give a pod a kernel or a
	// network stack of its own. Empty: those of the variable of that name.
	SandboxedClasses []string
}

// Plan is everything that a mesh means for a pod.
type Plan struct {
	// Decision tells a pod of the mesh from others. If it is none, the fields below are empty, but for Answers.
	Decision selection.Decision
	// Dialect is the name of the mesh that has the pod.
	Dialect string
	// Answers are the decisions of the meshes of a [Set], in order. nil: there is only one.
	Answers []Answer
	// Redirect is the pod's configuration with the Options applied, and Ruleset its rules.
	Redirect redirect.Redirect
	Ruleset  ruleset.Ruleset
	// Origins are the sources of the Redirect's fields.
	Origins []redirect.Origin
	// Warnings lists settings that were ignored or tolerated, and families that
	// are not captured as the mesh would. Those of Decision are not repeated.
	Warnings warning.List
	// Bypasses are the ways past the mesh that remain open.
	Bypasses []Bypass
	// BeforeProxy are the init containers that run before the proxy: they have no network, since their connections are
	// redirected to nobody.
	BeforeProxy []string
	// Captured are the families that the rules redirect, without those known to be absent from the kernel. Addressed
	// are the families of the pod's addresses. Either may have one that the other lacks.
	Captured, Addressed []ruleset.Family

	queries bool // some DNS queries are captured
}

// Plan decides whether the pod is in the mesh, what its rules are, and what bypasses them. Everything that captures,
// checks, compares, repairs or explains a pod calls it, so all decide alike. It reads nothing but its arguments.
//
// An error refuses the pod. The Plan then has the decision, and those warnings and bypasses that are known; it has no Redirect and no
// Ruleset, and nothing applies the zero value of either. errors.As
// finds a [*redirect.SettingError] for each setting that is wrong, a [*SettingsError] for settings that are wrong
// together, and a [*BypassError] for each container, or the RuntimeClass, that the options refuse.
// Without a Namespace that the dialect needs, errors.Is(err, redirect.ErrNamespaceUnknown); Decision.Selected is then true, and
// Decision.Undecided, if it is not the settings alone that are unknown. Decision.Reason is [status.CodeProxyMissing] of a pod that is refused
// for the lack of a proxy. An [*InvalidError] is about the dialect, not the pod.
func (d Dialect) Plan(s Subject, o Options) (Plan, error) {
	return d.plan(s, o, d.Decide(s.Pod, s.Namespace))
}

// plan is Plan after the decision.
func (d *Dialect) plan(s Subject, o Options, decision selection.Decision) (Plan, error) {
	if decision.Undecided {
		return Plan{Decision: maybe(decision), Dialect: d.Name}, d.unknown(s.Pod, decision)
	}
	p := Plan{Decision: decision}
	if !p.Decision.Selected {
		return p, nil
	}
	p.Dialect = d.Name
	if decision.Reason == status.CodeProxyMissing && d.Policy.MissingProxy == status.StateRefused {
		return p, fmt.Errorf("pod %s/%s: %s; the mesh %s refuses a pod that is to have its proxy and has none", s.Pod.Namespace, s.Pod.Name, decision.Detail, d.Name)
	}
	b, err := d.build(s.Pod, s.Namespace, s.Addrs)
	p.Warnings = append(b.Warnings, d.retired(s.Pod)...)
	if err != nil && (errors.Is(err, redirect.ErrNamespaceUnknown) || errors.As(err, new(*InvalidError))) {
		return p, err
	}
	own := slices.Concat(d.Policy.ProxyContainers, b.ProxyContainers)
	p.Bypasses = append(sandboxed(s.Pod, o.SandboxedClasses), containerBypasses(s.Pod, own, d.Check.Container, b.Redirect.Proxy)...)
	if err != nil {
		return p, errors.Join(err, o.refusal(p.Bypasses, d.NodeProxy != nil))
	}
	if err := o.refusal(p.Bypasses, d.NodeProxy != nil); err != nil {
		invalid := b.Blame(b.Redirect.Validate())
		return p, fmt.Errorf("pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, errors.Join(err, invalid))
	}
	p.Redirect, p.Origins = b.Redirect, b.Origins
	p.BeforeProxy = d.beforeProxy(s.Pod, own, p.Redirect)
	p.Warnings = append(p.Warnings, d.proxyUser(s.Pod, p.Redirect.Proxy)...)
	p.families(s, o)
	if p.Ruleset, err = p.Redirect.Ruleset(); err != nil {
		p.Redirect, p.Origins, p.Captured = redirect.Redirect{}, nil, nil
		return p, d.blame(s.Pod, b, err)
	}
	p.directions(s)
	return p, nil
}

// families applies the option about uncaptured families, and fills in the fields about families.
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
				p.Warnings = append(p.Warnings, warning.New(warning.FamilyAbsent, "", "the kernel has no %s here", f))
				continue
			}
			p.Captured = append(p.Captured, f)
		case redirect.FamilyPass:
			if o.UncapturedFamily == redirect.UncapturedDrop {
				// Also without the family in the kernel: it may come up later, and absent ones are skipped.
				*mode = redirect.FamilyDrop
				if has >= 0 {
					p.Warnings = append(p.Warnings, warning.New(warning.FamilyDropped, "",
						"%s is discarded: the mesh captures the other family only", f))
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

// proxyUser warns of a proxy container that says which user it runs as, where that is not the rules' and no group is.
func (d *Dialect) proxyUser(pod *corev1.Pod, known redirect.Proxy) warning.List {
	c := d.Policy.Proxy(pod)
	if c == nil || !known.Mark.IsZero() {
		return nil
	}
	its, pods := contexts(pod, c)
	user, group := cmp.Or(its.RunAsUser, pods.RunAsUser), cmp.Or(its.RunAsGroup, pods.RunAsGroup)
	is := func(id *int64, ids []uint32) bool {
		return id != nil && slices.ContainsFunc(ids, func(known uint32) bool { return int64(known) == *id })
	}
	if user == nil || is(user, known.UIDs) || is(group, known.GIDs) {
		return nil
	}
	by := "user " + idWords(known.UIDs)
	if len(known.UIDs) == 0 {
		by = "group " + idWords(known.GIDs)
	} else if len(known.GIDs) > 0 {
		by += " and group " + idWords(known.GIDs)
	}
	text := fmt.Sprintf("container %q runs as user %d, and the rules know the proxy by %s", c.Name, *user, by)
	if group == nil && len(known.GIDs) > 0 {
		text += ", which is not said"
	}
	return warning.List{warning.New(warning.ProxyUser, "", "%s: its connections would be redirected to itself", text)}
}

// idWords names the first ids of a list, which may be long.
func idWords(ids []uint32) string {
	return truncate.Text(strings.Trim(fmt.Sprint(ids[:min(len(ids), 4)]), "[]"), 60)
}

// retired warns of what earlier versions of the mesh read.
func (d *Dialect) retired(pod *corev1.Pod) (all warning.List) {
	for _, r := range d.Retired {
		if value, ok := pod.Annotations[r.Key]; ok && (r.Value == "" || r.Value == value) {
			all = append(all, warning.New(warning.NoEffect, r.Key, "annotation %s=%.64q has no effect: today's versions of the mesh read %s", r.Key, value, r.Now))
		}
	}
	return all
}

// BypassCodes returns the codes of the bypasses, each once.
func (p Plan) BypassCodes() []BypassCode {
	var codes []BypassCode
	for _, b := range p.Bypasses {
		if !slices.Contains(codes, b.Code) {
			codes = append(codes, b.Code)
		}
	}
	return codes
}

// refusal joins an error for each bypass that the options refuse.
func (o Options) refusal(bypasses []Bypass, proxyOnNode bool) error {
	var errs []error
	for _, b := range bypasses {
		if b.Code == BypassSandboxed && !o.AllowSandboxed || b.Container != "" && b.Code != BypassInitID && (o.RefuseProxyUID && !(proxyOnNode && b.ByDefault()) || o.RefuseNetRaw && b.Code == BypassNetRaw) {
			errs = append(errs, &BypassError{b})
		}
	}
	return errors.Join(errs...)
}
