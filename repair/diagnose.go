package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Finding is what [Diagnose] says of one pod.
type Finding struct {
	// Broken is whether the pod lacks redirection and something should be done.
	Broken bool
	// Candidate is whether the pod is one that checks its redirection and could
	// be broken: a share of broken pods is one of these.
	Candidate bool
	// Reason is why, as a stable code; Detail is the same for people.
	Reason Reason
	Detail string
	// Container is the check's, and ExitCode what it last failed with; only when
	// the check is known to have failed.
	Container string
	ExitCode  int32
	// FailedAt is when that attempt began, to the second.
	FailedAt time.Time
	// Final is whether the pod will never run again, so that rules come too
	// late for it: only a new pod helps.
	Final bool
}

// Reason is a stable code for a finding. Codes are never renamed or reused.
type Reason string

// The reasons, in the order in which they are looked for. Only CheckFailed is broken.
const (
	// NotMatched: a selector or the wanted annotation leaves the pod out.
	NotMatched Reason = "not-matched"
	// MirrorPod: the kubelet's image of a static pod; nothing done to it counts.
	MirrorPod Reason = "mirror-pod"
	// Deleting: the pod is on its way out.
	Deleting Reason = "deleting"
	// Completed: the pod has succeeded.
	Completed Reason = "completed"
	// NoCheck: the pod has no init container that checks redirection.
	NoCheck Reason = "no-check"
	// NotSelected: the mesh's policy passes the pod over, so the plugin would too.
	NotSelected Reason = "not-selected"
	// NotChecked: the check has not ended yet for the first time.
	NotChecked Reason = "not-checked"
	// CheckPassed: the check succeeded.
	CheckPassed Reason = "check-passed"
	// Recovered: the check succeeded after it had failed.
	Recovered Reason = "recovered"
	// OtherFailure: the check ended with another exit code or message, so it is
	// not redirection that is missing.
	OtherFailure Reason = "other-failure"
	// Checking: the check failed and is running again; it will tell.
	Checking Reason = "checking"
	// Handled: the pod carries the label that says so.
	Handled Reason = "handled"
	// CheckFailed: the check failed because redirection is missing.
	CheckFailed Reason = "check-failed"
)

// Reasons lists every reason that Diagnose gives.
var Reasons = []Reason{
	NotMatched, MirrorPod, Deleting, Completed, NoCheck, NotSelected, NotChecked,
	CheckPassed, Recovered, OtherFailure, Checking, Handled, CheckFailed,
}

// mirrorAnnotation is on the API server's image of a static pod
// (corev1.MirrorPodAnnotationKey).
const mirrorAnnotation = corev1.MirrorPodAnnotationKey

// Diagnose says whether the pod is broken. It looks at nothing but the pod.
func Diagnose(pod *corev1.Pod, c Criteria) Finding {
	if out, ok := leftOut(pod, c); ok {
		return out
	}
	status, declared := check(pod, c.Containers)
	if !declared {
		return Finding{Reason: NoCheck, Detail: "no init container is named " + strings.Join(c.Containers, " or ")}
	}
	if c.Policy != nil {
		if d := c.Policy.Decide(pod, nil); !d.Selected {
			return Finding{Reason: NotSelected, Detail: fmt.Sprintf("%s: %s", d.Reason, d.Detail)}
		}
	}
	if status == nil {
		return Finding{Candidate: true, Reason: NotChecked, Detail: "the check has not run yet"}
	}
	f := judge(status, c)
	f.Candidate = true
	f.Final = pod.Status.Phase == corev1.PodFailed || pod.Spec.RestartPolicy == corev1.RestartPolicyNever
	if f.Broken && c.HandledLabel != "" && pod.Labels[c.HandledLabel] == c.HandledValue {
		f.Broken, f.Reason, f.Detail = false, Handled, fmt.Sprintf("label %s=%s is set", c.HandledLabel, c.HandledValue)
	}
	return f
}

// leftOut tells the pods whose checks are not even looked at.
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
	if _, mirror := pod.Annotations[mirrorAnnotation]; mirror {
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

// check finds the check's status, and whether the pod has one of the containers at all.
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

// judge reads the check's status. The current state counts before the last one:
// the last state is missing altogether where a container is never restarted, as
// in Jobs, and is history where a restart has succeeded.
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

// starting tells the container that is about to run from the one that the
// kubelet holds back after a failure ("CrashLoopBackOff").
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
