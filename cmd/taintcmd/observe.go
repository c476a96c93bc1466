package taintcmd

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/daemonset"
	"github.com/meshcni/meshcni/internal/readytaint"
)

// observe returns an observation of a node.
func (s *settings) observe(node *corev1.Node, pods []*corev1.Pod, set *appsv1.DaemonSet) readytaint.Node {
	n := readytaint.Node{Name: node.Name, UID: string(node.UID), Boot: node.Status.NodeInfo.BootID, Place: s.place(node, set)}
	for _, t := range node.Spec.Taints {
		if t.Key == s.key {
			n.Tainted = true
			n.PutBack = n.PutBack || t.Value == readytaint.PutBack
		} else if slices.Contains(s.alsoRemove, t.Key) {
			n.Foreign = true
		}
	}
	for _, pod := range pods {
		n.Agents = append(n.Agents, readytaint.Agent{Instance: instance(pod), Ready: ready(pod)})
	}
	return n
}

// instance tells a run of the pod's containers from another.
func instance(pod *corev1.Pod) string {
	id := []string{string(pod.UID)}
	for _, c := range pod.Status.ContainerStatuses {
		id = append(id, c.ContainerID)
	}
	return strings.Join(id, " ")
}

// ready reports whether the pod is, and not about to end.
func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// place decides as the DaemonSet's controller would whether its pods belong on the node. Our own taint is not asked, since it would be
// what keeps the agent off. What is wrong with the DaemonSet is no answer: the node stays as it is.
func (s *settings) place(node *corev1.Node, set *appsv1.DaemonSet) readytaint.Place {
	place, _, err := daemonset.Place(node, &set.Spec.Template.Spec, s.key)
	if err != nil {
		return readytaint.KeptOff
	}
	return place
}

// by names the reason of a change, for people.
func by(a readytaint.Action) string {
	switch a.Why {
	case readytaint.AgentReady:
		return "the agent is ready"
	case readytaint.NoAgent:
		return "no agent can run here"
	case readytaint.NodeBooted:
		return "the node has booted, and its agent is not ready yet"
	}
	return fmt.Sprintf("the agent has been gone or not ready since %s", a.Since.UTC().Format("15:04:05 MST"))
}
