package daemonset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/meshcni/meshcni/internal/readytaint"
)

// Place decides as the DaemonSet's controller does whether pods of this spec belong on the node, and says why they do not.
// Of taints with the key except, "" for none, it does not ask. An error means that the spec gives no answer.
func Place(node *corev1.Node, spec *corev1.PodSpec, except string) (readytaint.Place, string, error) {
	for _, system := range []string{node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem} {
		if system != "" && system != "linux" {
			return readytaint.NotForAgents, "its system is " + system, nil
		}
	}
	switch fits, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(node); {
	case err != nil:
		return readytaint.KeptOff, "", fmt.Errorf("the DaemonSet's affinity: %w", err)
	case !fits:
		return readytaint.NotForAgents, "its nodeSelector or affinity leaves the node out", nil
	}
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; keepsOff(taint) && taint.Key != except && !tolerated(taint, spec.Tolerations) {
			if other := slices.IndexFunc(spec.Tolerations, otherOperator); other >= 0 {
				return readytaint.KeptOff, "", fmt.Errorf("the DaemonSet's tolerations: operator %q is not known", spec.Tolerations[other].Operator)
			}
			return readytaint.KeptOff, "it does not tolerate the taint " + taint.ToString(), nil
		}
	}
	return readytaint.ForAgents, "", nil
}

// keepsOff reports whether a taint keeps pods off that do not tolerate it. Kubernetes' own, as of a node that is cordoned or cannot be
// reached, say how the node is, and its DaemonSets' pods tolerate them.
func keepsOff(t *corev1.Taint) bool {
	return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
}

func otherOperator(t corev1.Toleration) bool {
	return t.Operator != "" && t.Operator != corev1.TolerationOpEqual && t.Operator != corev1.TolerationOpExists
}

// tolerated is ToleratesTaint of k8s.io/api, whose arguments differ among the versions of it that this module builds with.
func tolerated(taint *corev1.Taint, by []corev1.Toleration) bool {
	for _, t := range by {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			continue
		}
		if t.Operator == corev1.TolerationOpExists || (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == taint.Value {
			return true
		}
	}
	return false
}
