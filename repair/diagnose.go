package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Finding is the result of [Diagnose].
type Finding struct {
	// Broken means that the pod lacks redirection and something should be done.
	Broken bool
	// Candidate means that the pod checks its redirection, so that it could be broken.
	Candidate bool
	// Reason is the cause, as a stable code; Detail is the same for people.
	Reason Reason
	Detail string
	// Container is the name of the check's container and ExitCode what it last failed with. Both are zero if the check is
	// not known to have failed.
	Container string
	ExitCode  int32
	// FailedAt is the time at which the failed run began, in whole seconds.
	FailedAt time.Time
	// Undecided means that the labels of the pod's namespace, which Diagnose does not know, decide whether the pod is in the mesh.
	// Ask for them before you act on it, as a [Controller] does. Where Policy.Decline panics, it cannot be told with them either.
	Undecided bool
	// Final means that the pod will never run again, so that only a new pod helps.
	Final bool
}

// Reason is a stable code for a finding.
type Reason string

// The reasons, in the order in which Diagnose looks for them. Only CheckFailed and NotCaptured mean broken.
const (
	NotMatched   Reason = "not-matched"   // a selector or the required annotation excludes the pod
	MirrorPod    Reason = "mirror-pod"    // the pod mirrors a static pod, which no action on it would affect
	Deleting     Reason = "deleting"      // the pod is being deleted
	Completed    Reason = "completed"     // the pod has succeeded
	NoCheck      Reason = "no-check"      // the pod has no init container that checks redirection
	NotSelected  Reason = "not-selected"  // the mesh's policy passes the pod over, so the plugin would too
	NotChecked   Reason = "not-checked"   // the check has not ended for the first time yet
	CheckPassed  Reason = "check-passed"  // the check succeeded
	Recovered    Reason = "recovered"     // the check succeeded after it had failed
	OtherFailure Reason = "other-failure" // the check ended with another exit code or message
	Checking     Reason = "checking"      // the check failed and is running again
	Handled      Reason = "handled"       // the pod has the label that ActionLabel sets
	CheckFailed  Reason = "check-failed"  // the check failed because redirection is missing
	NotCaptured  Reason = "not-captured"  // detection found it (see [Detection]); Diagnose never says so
)

// Reasons lists all reasons.
var Reasons = []Reason{
	NotMatched, MirrorPod, Deleting, Completed, NoCheck, NotSelected, NotChecked,
	CheckPassed, Recovered, OtherFailure, Checking, Handled, CheckFailed, NotCaptured,
}

// Diagnose tells from the pod's status whether the pod is broken. A pod that its namespace's labels may enable, or exclude, counts as
// one of the mesh that is Undecided.
func Diagnose(pod *corev1.Pod, c Criteria) Finding {
	if out, ok := leftOut(pod, c); ok {
		return out
	}
	status, declared := check(pod, c.Containers)
	if !declared {
		return Finding{Reason: NoCheck, Detail: "no init container is named " + strings.Join(c.Containers, " or ")}
	}
	undecided := false
	if c.Policy != nil {
		d := c.Policy.Decide(pod, nil)
		if undecided = d.Undecided; !d.Selected && !undecided {
			return Finding{Reason: NotSelected, Detail: fmt.Sprintf("%s: %s", d.Reason, d.Detail)}
		}
	}
	if status == nil {
		return Finding{Candidate: true, Undecided: undecided, Reason: NotChecked, Detail: "the check has not run yet"}
	}
	f := judge(status, c)
	f.Candidate, f.Undecided = true, undecided
	f.Final = pod.Status.Phase == corev1.PodFailed || pod.Spec.RestartPolicy == corev1.RestartPolicyNever
	if f.Broken && c.handled(pod) {
		f.Broken, f.Reason, f.Detail = false, Handled, fmt.Sprintf("label %s=%s is set", c.HandledLabel, c.HandledValue)
	}
	return f
}

// leftOut returns the finding of a pod whose checks are not looked at.
func leftOut(pod *corev1.Pod, c Criteria) (Finding, bool) {
	out := func(r Reason, format string, args ...any) (Finding, bool) {
		return Finding{Reason: r, Detail: fmt.Sprintf(format, args...)}, true
	}
	_, annotated := pod.Annotations[c.Annotation]
	switch {
	case c.Annotation != "" && !annotated:
		return out(NotMatched, "annotation %s is absent", c.Annotation)
	case c.Labels != nil && !c.Labels.Matches(labels.Set(pod.Labels)):
		return out(NotMatched, "labels do not match %s", c.Labels)
	case c.Fields != nil && !c.Fields.Matches(podFields(pod)):
		return out(NotMatched, "fields do not match %s", c.Fields)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return out(MirrorPod, "the kubelet runs it from a file")
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return out(Deleting, "deleted at %s", pod.DeletionTimestamp.UTC().Format(time.RFC3339))
	case pod.Status.Phase == corev1.PodSucceeded:
		return out(Completed, "the pod has succeeded")
	}
	return Finding{}, false
}

// check returns the status of the first of the containers, and whether the pod has one of them.
func check(pod *corev1.Pod, names []string) (status *corev1.ContainerStatus, declared bool) {
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; slices.Contains(names, s.Name) {
			return s, true
		}
	}
	return nil, slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return slices.Contains(names, c.Name)
	})
}

// judge reads the check's status. The current state takes precedence over the last one, which is missing if a container is
// never restarted, as in Jobs, and outdated if a restart has succeeded.
func judge(s *corev1.ContainerStatus, c Criteria) Finding {
	now, last := s.State.Terminated, s.LastTerminationState.Terminated
	switch {
	case now != nil && now.ExitCode == 0:
		if last != nil && c.means(last) {
			return Finding{Reason: Recovered, Detail: fmt.Sprintf("%s succeeded after exit code %d", s.Name, last.ExitCode)}
		}
		return Finding{Reason: CheckPassed, Detail: s.Name + " succeeded"}
	case now != nil:
		return c.failure(s.Name, now)
	case last == nil:
		return Finding{Reason: NotChecked, Detail: s.Name + " has not ended yet"}
	case s.State.Running != nil || starting(s.State.Waiting):
		f := c.failure(s.Name, last)
		if f.Broken {
			f.Broken, f.Reason, f.Detail = false, Checking, fmt.Sprintf("%s failed with exit code %d and runs again", s.Name, last.ExitCode)
		}
		return f
	}
	return c.failure(s.Name, last)
}

// starting reports whether a container is about to run, rather than held back after a failure ("CrashLoopBackOff").
func starting(w *corev1.ContainerStateWaiting) bool {
	return w != nil && (w.Reason == "PodInitializing" || w.Reason == "ContainerCreating")
}

func (c Criteria) means(t *corev1.ContainerStateTerminated) bool {
	return slices.Contains(c.ExitCodes, t.ExitCode) && strings.Contains(t.Message, c.Message)
}

func (c Criteria) failure(name string, t *corev1.ContainerStateTerminated) Finding {
	f := Finding{Container: name, ExitCode: t.ExitCode, FailedAt: t.StartedAt.Time}
	switch {
	case c.means(t):
		f.Broken, f.Reason = true, CheckFailed
		f.Detail = fmt.Sprintf("init container %s ended with exit code %d: redirection is missing", name, t.ExitCode)
	case slices.Contains(c.ExitCodes, t.ExitCode):
		f.Reason, f.Detail = OtherFailure, fmt.Sprintf("%s ended with exit code %d and a message without %q", name, t.ExitCode, c.Message)
	default:
		f.Reason, f.Detail = OtherFailure, fmt.Sprintf("%s ended with exit code %d", name, t.ExitCode)
	}
	return f
}
