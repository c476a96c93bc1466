package explain

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

// workloadOf returns the workload of a pod: its controller, and of a ReplicaSet that a Deployment has made the Deployment.
func workloadOf(pod *corev1.Pod) Workload {
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
func (w Workload) String() string { return strings.ToLower(w.Kind) + "/" + word(w.Name) }

// patched reports whether kubectl can change the workload's template, whereupon its controller replaces the pods.
func (w Workload) patched() bool {
	return w.Kind == "Deployment" || w.Kind == "DaemonSet" || w.Kind == "StatefulSet"
}

// plain are the names that Kubernetes allows. Others come from files, and are not put into commands for a shell.
var plain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

func word(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return "NAME"
}

// kubectl begins a command about something in the pod's namespace.
func kubectl(pod *corev1.Pod) string { return "kubectl --namespace " + word(pod.Namespace) + " " }

// Restart is the command that makes the pod anew.
func Restart(pod *corev1.Pod) string {
	w := workloadOf(pod)
	_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case static || w.Kind == "Node":
		return "It is a static pod: move its manifest out of the kubelet's directory on the node, and back"
	case w.patched():
		return "Restart it: " + kubectl(pod) + "rollout restart " + w.String()
	case w.Kind == "CronJob":
		return "The pods of the next Job that " + w.String() + " makes are new"
	case w.Kind == "Job" && pod.UID == "":
		return "Delete the Job, and create it again: " + kubectl(pod) + "delete " + w.String()
	case w.Kind != "":
		return fmt.Sprintf("Delete it, and its %s makes another: %sdelete pod %s", w.Kind, kubectl(pod), word(pod.Name))
	}
	return fmt.Sprintf("Delete it and create it again from its manifest, since nothing replaces it: %sdelete pod %s", kubectl(pod), word(pod.Name))
}

// Then is [Restart] as the rest of a sentence, such as "Then restart it: …".
func Then(first string, pod *corev1.Pod) string {
	how := Restart(pod)
	return first + " " + strings.ToLower(how[:1]) + how[1:]
}

// metadata are the parts of a pod's metadata that say what a mesh does with it.
const (
	labels      = "labels"
	annotations = "annotations"
)

// set is the command that gives a label or annotation of the pod a value, nil for none. It counts for a new pod only.
func set(pod *corev1.Pod, kind, key string, value *string) string {
	if w := workloadOf(pod); w.patched() {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{kind: map[string]any{key: value}}}}})
		if err == nil {
			return fmt.Sprintf("%spatch %s --type=merge --patch '%s' (this restarts the pods)", kubectl(pod), w, patch)
		}
	}
	one, where := strings.TrimSuffix(kind, "s"), "the pod's manifest"
	if w := workloadOf(pod); w.Kind != "" && w.Kind != "Node" {
		where = "the pod template of " + w.String()
	}
	if value == nil {
		return fmt.Sprintf("take the %s %s out of %s, and create the pod anew", one, key, where)
	}
	return fmt.Sprintf("give it the %s %s: %q in %s, and create it anew", one, key, *value, where)
}
