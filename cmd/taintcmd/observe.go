package taintcmd

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

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

// place decides as the DaemonSet's controller would whether its pods belong on the node.
func (s *settings) place(node *corev1.Node, set *appsv1.DaemonSet) readytaint.Place {
	for _, system := range []string{node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem} {
		if system != "" && system != "linux" {
			return readytaint.NotForAgents
		}
	}
	pod := corev1.Pod{Spec: set.Spec.Template.Spec}
	// What is wrong with its affinity is an error of the DaemonSet's, and no answer: the node stays as it is.
	switch fits, err := nodeaffinity.GetRequiredNodeAffinity(&pod).Match(node); {
	case err != nil:
		return readytaint.KeptOff
	case !fits:
		return readytaint.NotForAgents
	}
	if _, keptOff := scheduling.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, s.keepsOff, false); keptOff {
		return readytaint.KeptOff
	}
	return readytaint.ForAgents
}

// keepsOff reports whether a taint keeps pods off that do not tolerate it. Kubernetes' own say how the node is, and its
// DaemonSets' pods tolerate them; ours is not asked, since it would be what keeps the agent off.
func (s *settings) keepsOff(t *corev1.Taint) bool {
	return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != s.key && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
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
