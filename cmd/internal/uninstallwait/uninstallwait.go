// Package uninstallwait waits until each pod of a DaemonSet has done its work once, and says of which nodes that is not so.
package uninstallwait

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster reads the DaemonSet and its pods.
type Cluster interface {
	// DaemonSet reads the one whose pods work.
	DaemonSet(context.Context) (*appsv1.DaemonSet, error)
	// Pods reads the pods of its namespace.
	Pods(context.Context) ([]corev1.Pod, error)
}

// Waiter waits for the pods of a DaemonSet, while pods of another may be in its way.
type Waiter struct {
	Cluster Cluster
	// Before says of which pods a node must be rid before the work counts; nil: of none. Where one is seen after the work was
	// done, the work has to be done again.
	Before func(*corev1.Pod) bool

	again map[string]int32 // by node: the first run that counts, from 0 on
}

// Pending is a node whose work is not done.
type Pending struct{ Node, Why string }

// Wait asks every interval until the work is done on each node, or ctx ends. It returns how many nodes there are, and those
// where the work is not done, by name.
func (w *Waiter) Wait(ctx context.Context, interval time.Duration) (nodes int, pending []Pending) {
	for {
		n, now, err := w.look(ctx)
		if err == nil && len(now) == 0 {
			return n, nil
		}
		if err != nil {
			now = []Pending{{"no node is known", err.Error()}}
		}
		if ctx.Err() == nil || pending == nil { // what the end cut off says nothing
			nodes, pending = n, now
		}
		select {
		case <-ctx.Done():
			return nodes, pending
		case <-time.After(interval):
		}
	}
}

// look returns the nodes where the work is not done, by name, and how many nodes there are.
func (w *Waiter) look(ctx context.Context) (nodes int, pending []Pending, err error) {
	set, err := w.Cluster.DaemonSet(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("read DaemonSet: %w", err)
	}
	pods, err := w.Cluster.Pods(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("list pods: %w", err)
	}
	if set.Status.ObservedGeneration < set.Generation {
		return 0, nil, fmt.Errorf("nobody has made pods of DaemonSet %s yet: does the controller manager run?", set.Name)
	}
	w.voidEarly(set, pods)
	nodes = int(set.Status.DesiredNumberScheduled)
	seen := map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		if !owned(pod, set) {
			continue
		}
		node := nodeOf(pod)
		if seen[node] {
			continue // one that is being replaced
		}
		seen[node] = true
		if why := w.undone(pod, node); why != "" {
			pending = append(pending, Pending{node, why})
		}
	}
	for i := range pods {
		if pod := &pods[i]; w.Before != nil && w.Before(pod) && !slices.ContainsFunc(pending, func(a Pending) bool { return a.Node == nodeOf(pod) }) {
			pending = append(pending, Pending{nodeOf(pod), "pod " + pod.Name + " is still there"})
		}
	}
	slices.SortFunc(pending, func(a, b Pending) int { return cmp.Compare(a.Node, b.Node) })
	if missing := nodes - len(seen); missing > 0 {
		pending = append(pending, Pending{fmt.Sprintf("%d more nodes", missing), "no pod could be made for them: kubectl describe daemonset " + set.Name + " says why"})
	}
	return nodes, pending, nil
}

// voidEarly notes on which nodes the work that is done already does not count, since another pod is still there.
func (w *Waiter) voidEarly(set *appsv1.DaemonSet, pods []corev1.Pod) {
	if w.again == nil {
		w.again = map[string]int32{}
	}
	for i := range pods {
		if w.Before == nil || !w.Before(&pods[i]) {
			continue
		}
		node := nodeOf(&pods[i])
		for j := range pods {
			if pod := &pods[j]; owned(pod, set) && nodeOf(pod) == node && len(pod.Status.ContainerStatuses) > 0 {
				_, run := lastRun(&pod.Status.ContainerStatuses[0])
				w.again[node] = run + 1
			}
		}
	}
}

// undone gives the reason that a pod's work is not done; empty: it is.
func (w *Waiter) undone(pod *corev1.Pod, node string) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		for _, c := range pod.Status.Conditions {
			if c.Status == corev1.ConditionFalse && c.Message != "" {
				return c.Message
			}
		}
		return "the kubelet has not begun: is the node up?"
	}
	s := &pod.Status.ContainerStatuses[0]
	end, run := lastRun(s)
	switch {
	case end != nil && end.ExitCode == 0 && run >= w.again[node]:
		return ""
	case end != nil && end.ExitCode != 0:
		return fmt.Sprintf("exit code %d: %s", end.ExitCode, strings.Join(strings.Fields(end.Message), " "))
	case s.State.Waiting != nil:
		return strings.TrimSuffix(s.State.Waiting.Reason+": "+s.State.Waiting.Message, ": ")
	}
	return "not done yet"
}

// lastRun returns the end of the container's last run, nil if none has ended, and its number, from 0 on.
func lastRun(s *corev1.ContainerStatus) (end *corev1.ContainerStateTerminated, run int32) {
	if s.State.Running != nil {
		return s.LastTerminationState.Terminated, s.RestartCount - 1
	}
	end = cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
	if end == nil {
		return nil, -1
	}
	return end, s.RestartCount
}

func owned(pod *corev1.Pod, set *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == set.UID })
}

// nodeOf is the node that a DaemonSet's pod is on, or is for.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range term.MatchFields {
				if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
					return f.Values[0]
				}
			}
		}
	}
	return "pod " + pod.Name
}
