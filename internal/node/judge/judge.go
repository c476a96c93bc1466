// Package judge says what a node's meshes mean for one of its pods: whose the pod is, or that this cannot be told, by which rules, and
// whose it would be if the node were configured for more meshes. Everything in the agent that asks this about a pod asks a [Judgement],
// which is made once for each version of the pod and of its namespace, and kept beside the pod in the watch of the node's pods
// (nodepods.Watch.Judgement). Nothing else in the agent asks a selection.Policy.
//
// The package does no I/O: a judgement depends on the meshes, the pod and the namespace alone.
package judge

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// Judge judges by a node's meshes, as the plugin is configured. Make one with [New].
type Judge struct{ meshes, others dialect.Set }

// New returns a judge by the meshes.
func New(meshes dialect.Set) *Judge { return &Judge{meshes: meshes, others: meshes.Others()} }

// NeedsNamespace reports whether the pod's namespace is needed to judge it. It asks the meshes, so whoever has the namespace at hand, or keeps
// judgements, does without it.
func (j *Judge) NeedsNamespace(pod *corev1.Pod) bool { return j.meshes.ReadsNamespace(pod) }

// Pod judges a pod. Namespace is the pod's; nil: it is not known, and unknown says why, or no mesh asks for it.
func (j *Judge) Pod(pod *corev1.Pod, namespace *corev1.Namespace, unknown error) *Judgement {
	is := &Judgement{Pod: pod, Namespace: namespace, judge: j, unknown: unknown}
	is.others = sync.OnceValues(is.asked)
	if err := podkeep.Whole(pod); err != nil && (pod == nil || !pod.Spec.HostNetwork) {
		is.Err, is.answers = err, make([]selection.Decision, j.meshes.Len())
		for i := range is.answers {
			is.answers[i].Undecided = true
		}
		return is
	}
	choice, err := j.meshes.Choose(pod, namespace)
	is.choice, is.Mesh, is.Decision, is.Err = choice, choice.Dialect, choice.Decision, is.because(err)
	for _, a := range choice.Answers {
		is.answers = append(is.answers, a.Decision)
	}
	if choice.Answers == nil {
		is.answers = []selection.Decision{choice.Decision}
	}
	return is
}

// Judgement holds the meshes' answers about a version of a pod. It never changes, and is safe for concurrent use.
type Judgement struct {
	Pod       *corev1.Pod
	Namespace *corev1.Namespace // nil: it is not known
	// Mesh has the pod, or may have it if it is Undecided. nil: none has it.
	Mesh *dialect.Dialect
	// Decision is that mesh's; without a mesh, it has the reason of the first and the details of all.
	Decision selection.Decision
	// Err is why it cannot be told whether a mesh has the pod, or which: errors.Is(err, redirect.ErrNamespaceUnknown), podkeep.ErrTooLarge, or
	// a *dialect.InvalidError. nil: it can. That the pod's settings are refused is no such reason; see [Judgement.Plan].
	Err error

	judge   *Judge
	unknown error
	choice  dialect.Choice
	answers []selection.Decision // of the meshes, in order
	others  func() (names []string, unsure bool)
}

// Undecided reports that it cannot be told whether a mesh has the pod, or which: neither yes nor no. Nothing is to be done to the pod
// then.
func (j *Judgement) Undecided() bool { return j.Err != nil }

// Selected reports whether a mesh has the pod for certain.
func (j *Judgement) Selected() bool { return j.Err == nil && j.Mesh != nil }

// Of reports whether the judgement is that of this version of the pod, with this namespace.
func (j *Judgement) Of(pod *corev1.Pod, namespace *corev1.Namespace) bool {
	return Same(j.Pod, pod, j.Namespace, namespace)
}

// Same reports whether a pod that was judged with one namespace need not be judged again with another: what the meshes read of both is the same.
func Same(judged, pod *corev1.Pod, before, namespace *corev1.Namespace) bool {
	if pod == nil || pod != judged && (pod.ResourceVersion == "" || pod.UID != judged.UID || pod.ResourceVersion != judged.ResourceVersion ||
		podkeep.Whole(pod) != nil || podkeep.Whole(judged) != nil) {
		return false
	}
	a, b := before, namespace
	return a == b || a != nil && b != nil && a.Name == b.Name && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// May returns the first mesh of some that has the pod, or else the first that may have it while that is undecided; nil: none.
func (j *Judgement) May(some func(dialect.Dialect) bool) *dialect.Dialect {
	if j.Err == nil {
		if j.Mesh != nil && some(*j.Mesh) {
			return j.Mesh
		}
		return nil
	}
	var maybe *dialect.Dialect
	for i, d := range slices.Collect(j.judge.meshes.All()) {
		switch answer := j.answers[i]; {
		case !some(d):
		case answer.Selected && !answer.Undecided:
			return &d
		case answer.Undecided && maybe == nil:
			maybe = &d
		}
	}
	return maybe
}

// Plan is the plan of the pod with these addresses, its primary one first, and this kernel, as [dialect.Set.Plan] has it. An error refuses the
// pod, or is Err.
func (j *Judgement) Plan(addrs []netip.Addr, kernel redirect.Kernel) (dialect.Plan, error) {
	if errors.Is(j.Err, podkeep.ErrTooLarge) {
		return dialect.Plan{}, j.Err
	}
	p, err := j.choice.Plan(dialect.Subject{Pod: j.Pod, Namespace: j.Namespace, Addrs: addrs, Kernel: kernel})
	return p, j.because(err)
}

// because adds why the namespace is not known.
func (j *Judgement) because(err error) error {
	if j.unknown != nil && errors.Is(err, redirect.ErrNamespaceUnknown) {
		return fmt.Errorf("%w: %w", err, j.unknown)
	}
	return err
}

// Others names the known meshes that would have a pod that none of the node's has. A mesh that selects the pod only by its namespace's
// labels is none of them: only a program that serves the mesh reads those.
func (j *Judgement) Others() []string {
	names, _ := j.others()
	return names
}

// OthersUndecided reports that there may be more Others, which the pod's namespace tells that is not known.
func (j *Judgement) OthersUndecided() bool {
	_, unsure := j.others()
	return unsure
}

func (j *Judgement) asked() (names []string, unsure bool) {
	if j.Err != nil || j.Mesh != nil {
		return nil, false
	}
	for d := range j.judge.others.All() {
		alone := d.Decide(j.Pod, nil)
		switch {
		case !alone.Selected || alone.Err != nil:
		case alone.Undecided && j.Namespace == nil:
			unsure = true
		case !alone.Undecided || d.Decide(j.Pod, j.Namespace).Selected:
			names = append(names, d.Name)
		}
	}
	return names, unsure
}

// Alone is a mesh's decision without the pod's namespace, for whoever has no more than its policy.
func Alone(policy *selection.Policy, pod *corev1.Pod) selection.Decision {
	return policy.Decide(pod, nil)
}

// Addrs returns the addresses that a pod's status has. One that cannot be read is as if it were not there yet.
func Addrs(pod *corev1.Pod) (addrs []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
