package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// Finding is the result of [Diagnose].
type Finding struct {
	// Broken means that the pod lacks redirection and something should be done.
	Broken bool
	// Candidate means that the pod checks its redirection, so that it could be broken.
	Candidate bool
	// Reason is the cause; Detail is the same for people. Only statuscode.CheckFailed and statuscode.NotCaptured, which detection finds
	// and Diagnose never does, mean broken.
	Reason status.Code
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

// Diagnose tells from the pod's status whether the pod is broken. A pod that its namespace's labels may enable, or exclude, counts as
// one of the mesh that is Undecided.
func Diagnose(pod *corev1.Pod, c Criteria) Finding {
	return diagnose(pod, c, func() selection.Decision { return judge.Alone(c.Policy, pod) })
}

// diagnose is the same with the meshes' decision, which counts if the criteria have a policy.
func diagnose(pod *corev1.Pod, c Criteria, decide func() selection.Decision) Finding {
	if out, ok := leftOut(pod, c); ok {
		return out
	}
	ran, declared := check(pod, c.Containers)
	if !declared {
		return Finding{Reason: statuscode.NoCheck, Detail: "no init container is named " + strings.Join(c.Containers, " or ")}
	}
	undecided := false
	if c.Policy != nil {
		d := decide()
		if undecided = d.Undecided; !d.Selected && !undecided {
			return Finding{Reason: statuscode.NotSelected, Detail: fmt.Sprintf("%s: %s", d.Reason, d.Detail)}
		}
	}
	if ran == nil {
		return Finding{Candidate: true, Undecided: undecided, Reason: statuscode.NotChecked, Detail: "the check has not run yet"}
	}
	f := outcome(ran, c)
	f.Candidate, f.Undecided = true, undecided
	f.Final = pod.Status.Phase == corev1.PodFailed || pod.Spec.RestartPolicy == corev1.RestartPolicyNever
	if f.Broken && c.handled(pod) {
		f.Broken, f.Reason, f.Detail = false, statuscode.Handled, fmt.Sprintf("label %s=%s is set", c.HandledLabel, c.HandledValue)
	}
	return f
}

// leftOut returns the finding of a pod whose checks are not looked at.
func leftOut(pod *corev1.Pod, c Criteria) (Finding, bool) {
	out := func(r status.Code, format string, args ...any) (Finding, bool) {
		return Finding{Reason: r, Detail: fmt.Sprintf(format, args...)}, true
	}
	_, annotated := pod.Annotations[c.Annotation]
	switch {
	case c.Annotation != "" && !annotated:
		return out(statuscode.NotMatched, "annotation %s is absent", c.Annotation)
	case c.Labels != nil && !c.Labels.Matches(labels.Set(pod.Labels)):
		return out(statuscode.NotMatched, "labels do not match %s", c.Labels)
	case c.Fields != nil && !c.Fields.Matches(podFields(pod)):
		return out(statuscode.NotMatched, "fields do not match %s", c.Fields)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return out(statuscode.MirrorPod, "the kubelet runs it from a file")
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return out(statuscode.Deleting, "deleted at %s", pod.DeletionTimestamp.UTC().Format(time.RFC3339))
	case pod.Status.Phase == corev1.PodSucceeded:
		return out(statuscode.Completed, "the pod has succeeded")
	}
	return Finding{}, false
}

// check returns the status of the first of the containers, and whether the pod has one of them.
func check(pod *corev1.Pod, names []string) (ran *corev1.ContainerStatus, declared bool) {
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; slices.Contains(names, s.Name) {
			return s, true
		}
	}
	return nil, slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return slices.Contains(names, c.Name)
	})
}

// outcome reads the check's status. The current state takes precedence over the last one, which is missing if a container is
// never restarted, as in Jobs, and outdated if a restart has succeeded.
func outcome(s *corev1.ContainerStatus, c Criteria) Finding {
	now, last := s.State.Terminated, s.LastTerminationState.Terminated
	switch {
	case now != nil && now.ExitCode == 0:
		if last != nil && c.means(last) {
			return Finding{Reason: statuscode.Recovered, Detail: fmt.Sprintf("%s succeeded after exit code %d", s.Name, last.ExitCode)}
		}
		return Finding{Reason: statuscode.CheckPassed, Detail: s.Name + " succeeded"}
	case now != nil:
		return c.failure(s.Name, now)
	case last == nil:
		return Finding{Reason: statuscode.NotChecked, Detail: s.Name + " has not ended yet"}
	case s.State.Running != nil || starting(s.State.Waiting):
		f := c.failure(s.Name, last)
		if f.Broken {
			f.Broken, f.Reason, f.Detail = false, statuscode.Checking, fmt.Sprintf("%s failed with exit code %d and runs again", s.Name, last.ExitCode)
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
		f.Broken, f.Reason = true, statuscode.CheckFailed
		f.Detail = fmt.Sprintf("init container %s ended with exit code %d: redirection is missing", name, t.ExitCode)
	case slices.Contains(c.ExitCodes, t.ExitCode):
		f.Reason, f.Detail = statuscode.OtherFailure, fmt.Sprintf("%s ended with exit code %d and a message without %q", name, t.ExitCode, c.Message)
	default:
		f.Reason, f.Detail = statuscode.OtherFailure, fmt.Sprintf("%s ended with exit code %d", name, t.ExitCode)
	}
	return f
}
