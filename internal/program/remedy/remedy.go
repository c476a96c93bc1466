// Package remedy has the commands of kubectl by which a pod's settings are changed, and the pod is made anew.
package remedy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload is the object whose pod template a pod is made from. Kind is empty for a pod that nobody replaces.
type Workload struct{ Kind, Name string }

// WorkloadOf returns the workload of a pod: its controller, and of a ReplicaSet that a Deployment has made the Deployment.
func WorkloadOf(pod *corev1.Pod) Workload {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return Workload{}
	}
	if name, ok := strings.CutSuffix(owner.Name, "-"+pod.Labels["pod-template-hash"]); ok && owner.Kind == "ReplicaSet" {
		return Workload{"Deployment", name}
	}
	return Workload{owner.Kind, owner.Name}
}

// String is the workload as kubectl takes it, such as deployment/cart.
func (w Workload) String() string { return strings.ToLower(w.Kind) + "/" + Word(w.Name) }

// Patched reports whether kubectl can change the workload's template, whereupon its controller replaces the pods.
func (w Workload) Patched() bool {
	return w.Kind == "Deployment" || w.Kind == "DaemonSet" || w.Kind == "StatefulSet"
}

// plain are the names that Kubernetes allows. Others come from files, and are not put into commands for a shell.
var plain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// Word is a name as it can stand in a command: NAME for one that Kubernetes does not allow.
func Word(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return "NAME"
}

// Kubectl begins a command about something in the pod's namespace.
func Kubectl(pod *corev1.Pod) string { return "kubectl --namespace " + Word(pod.Namespace) + " " }

// Restart is the command that makes the pod anew.
func Restart(pod *corev1.Pod) string {
	w := WorkloadOf(pod)
	_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case static || w.Kind == "Node":
		return "It is a static pod: move its manifest out of the kubelet's directory on the node, and back"
	case w.Patched():
		return "Restart it: " + Kubectl(pod) + "rollout restart " + w.String()
	case w.Kind == "CronJob":
		return "The pods of the next Job that " + w.String() + " makes are new"
	case w.Kind == "Job" && pod.UID == "":
		return "Delete the Job, and create it again: " + Kubectl(pod) + "delete " + w.String()
	case w.Kind != "":
		return fmt.Sprintf("Delete it, and its %s makes another: %sdelete pod %s", w.Kind, Kubectl(pod), Word(pod.Name))
	}
	return fmt.Sprintf("Delete it and create it again from its manifest, since nothing replaces it: %sdelete pod %s", Kubectl(pod), Word(pod.Name))
}

// Then is [Restart] as the rest of a sentence, such as "Then restart it: …".
func Then(first string, pod *corev1.Pod) string {
	how := Restart(pod)
	return first + " " + strings.ToLower(how[:1]) + how[1:]
}

// The parts of a pod's metadata that say what a mesh does with it.
const (
	Labels      = "labels"
	Annotations = "annotations"
)

// Set is the command that gives a label or annotation of the pod a value, nil for none. It counts for a new pod only.
func Set(pod *corev1.Pod, kind, key string, value *string) string {
	if w := WorkloadOf(pod); w.Patched() {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{kind: map[string]any{key: value}}}}})
		if err == nil {
			return fmt.Sprintf("%spatch %s --type=merge --patch '%s' (this restarts the pods)", Kubectl(pod), w, patch)
		}
	}
	one, where := strings.TrimSuffix(kind, "s"), "the pod's manifest"
	if w := WorkloadOf(pod); w.Kind != "" && w.Kind != "Node" {
		where = "the pod template of " + w.String()
	}
	if value == nil {
		return fmt.Sprintf("take the %s %s out of %s, and create the pod anew", one, key, where)
	}
	return fmt.Sprintf("give it the %s %s: %q in %s, and create it anew", one, key, *value, where)
}
