// Package podkeep bounds what a node's agent keeps of the pods of its node in memory, and hands to the plugin.
package podkeep

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/selection"
)

const (
	// maxPodBytes bounds what a node's agent keeps of one pod ([Keep]): the pod in protobuf, and what its lists take in memory.
	maxPodBytes = 64 << 10
	// maxFailedBytes bounds it for a pod that has failed in an init container.
	maxFailedBytes = 4 << 10
)

// ErrTooLarge: an agent keeps a pod without its labels, annotations and containers, since they are larger than maxPodBytes, so
// it cannot tell what a mesh means for the pod. The API server can. Check with errors.Is(err, podkeep.ErrTooLarge).
var ErrTooLarge = errors.New("larger than the agent keeps")

// tooLarge marks a pod, in a field that [Trim] drops, so that no author of a pod can.
const tooLarge = "TooLarge"

// Whole returns nil, or [selection.ErrNoPod] for a nil pod, or [ErrTooLarge] for a pod that [Keep] has left nothing of but its names and state.
func Whole(pod *corev1.Pod) error {
	if pod == nil {
		return selection.ErrNoPod
	}
	if pod.Status.Reason == tooLarge && len(pod.Spec.Containers) == 0 { // each pod of an API server has one
		return fmt.Errorf("pod %s/%s: its labels, annotations and containers are %w: %s", pod.Namespace, pod.Name, ErrTooLarge, pod.Status.Message)
	}
	return nil
}

// Keep returns what a node's agent keeps of a pod, which shares memory with the original but none that it does not need:
//
//   - of a pod whose containers have ended, the names, UID, resource version, phase and addresses, and what the agent itself wrote;
//   - of any other, what [Trim] leaves, if that takes no more than maxPodBytes;
//   - of a larger one, what the known meshes read: the annotations that their Policies name or that are of their Domains, all labels,
//     since selectors are the operator's, and of containers that are no proxy, and do not check or set the rules, the names,
//     security contexts, restart policies, and the ports that probes and hooks ask;
//   - if that is larger too, or a mesh does not say what it reads, as of a pod that has ended; [Whole] then returns an error.
//
// A pod that has failed in an init container, by which a mesh's check may say that rules are missing, counts as one that
// runs, with maxFailedBytes, and as one that has ended if it is larger.
func Keep(known []dialect.Dialect, pod *corev1.Pod) *corev1.Pod {
	if Whole(pod) != nil {
		return pod // it was kept already
	}
	most := maxPodBytes
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return bare(known, pod)
	case corev1.PodFailed:
		if !slices.ContainsFunc(pod.Status.InitContainerStatuses, failed) {
			return bare(known, pod)
		}
		most = maxFailedBytes
	}
	kept := Trim(pod)
	if Weight(kept) <= most {
		return kept
	}
	if reads := readsOf(known); reads != nil {
		kept = reads.only(kept)
	}
	size := Weight(kept)
	if size <= most {
		return kept
	}
	return TooLarge(known, pod, fmt.Sprintf("%d bytes, and at most %d are kept", size, most))
}

// TooLarge returns what [Keep] does of a pod that is too large, for a reason of the caller's own.
func TooLarge(known []dialect.Dialect, pod *corev1.Pod, why string) *corev1.Pod {
	kept := bare(known, pod)
	if pod.Status.Phase != corev1.PodFailed {
		kept.Spec.HostNetwork, kept.DeletionTimestamp = pod.Spec.HostNetwork, pod.DeletionTimestamp
		kept.Status.Reason, kept.Status.Message = tooLarge, why
	}
	return kept
}

func failed(s corev1.ContainerStatus) bool {
	ended := func(t *corev1.ContainerStateTerminated) bool { return t != nil && t.ExitCode != 0 }
	return ended(s.State.Terminated) || ended(s.LastTerminationState.Terminated)
}

// bare is a pod without all that only matters while it runs.
func bare(known []dialect.Dialect, pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs},
	}
	keep := func(key, value string) {
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[key] = value
	}
	for _, d := range known {
		key := d.StatusAnnotation()
		switch v, has := pod.Annotations[key]; {
		case !has || key == "":
		case v == d.NodeProxy.Enrolled, v == d.NodeProxy.Pending:
			keep(key, v)
		default: // what else it says does not matter
			keep(key, "?")
		}
	}
	if uid := podid.Mirrored(pod); uid != "" {
		keep(corev1.MirrorPodAnnotationKey, string(uid))
	}
	return out
}

// Weight returns about how many bytes a pod takes: those of its protobuf, and those of the elements of its lists, which may take
// many times that. It is what maxPodBytes bounds.
func Weight(pod *corev1.Pod) int {
	const container, status, element = 512, 256, 64
	n := pod.Size() + status*len(pod.Status.InitContainerStatuses) + element*(len(pod.Labels)+len(pod.Annotations))
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			n += container + element*(len(list[i].Ports)+len(list[i].Env)+len(list[i].EnvFrom))
		}
	}
	return n
}

// KeepNamespace returns what a node's agent keeps of a namespace that has pods there: its name, UID, labels and annotations; of one
// larger than maxPodBytes those annotations that the known meshes read. The error is [ErrTooLarge].
func KeepNamespace(known []dialect.Dialect, namespace *corev1.Namespace) (*corev1.Namespace, error) {
	weight := func(n *corev1.Namespace) int { return n.Size() + 64*(len(n.Labels)+len(n.Annotations)) }
	kept := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace.Name, UID: namespace.UID, Labels: namespace.Labels, Annotations: namespace.Annotations, DeletionTimestamp: namespace.DeletionTimestamp,
	}}
	if weight(kept) <= maxPodBytes {
		return kept, nil
	}
	if r := readsOf(known); r != nil {
		kept.Annotations = r.some(namespace.Annotations)
	}
	if size := weight(kept); size > maxPodBytes {
		return nil, fmt.Errorf("namespace %s: its labels and annotations are %d bytes: %w", namespace.Name, size, ErrTooLarge)
	}
	return kept, nil
}

// reads is what meshes read of a pod: its annotations, and the containers by these names.
type reads struct {
	meshes     []dialect.Dialect
	containers map[string]bool
}

// readsOf returns what the meshes read; nil if one of them does not say.
func readsOf(known []dialect.Dialect) *reads {
	if len(known) == 0 || slices.ContainsFunc(known, func(d dialect.Dialect) bool { return len(d.Domains) == 0 }) {
		return nil
	}
	r := &reads{meshes: known, containers: map[string]bool{}}
	for _, d := range known {
		p := d.Policy
		for _, names := range [][]string{p.ProxyContainers, p.InitContainers, p.PrivilegedInitContainers, {d.Check.Container}} {
			for _, name := range names {
				r.containers[name] = true
			}
		}
	}
	return r
}

// key reports whether a mesh, or the agent itself, reads an annotation.
func (r *reads) key(key string) bool {
	return key == corev1.MirrorPodAnnotationKey || slices.ContainsFunc(r.meshes, func(d dialect.Dialect) bool { return d.Reads(key) })
}

// some returns the annotations that a mesh reads.
func (r *reads) some(all map[string]string) map[string]string {
	some := map[string]string{}
	for key, value := range all {
		if r.key(key) {
			some[key] = value
		}
	}
	return some
}

// only returns the pod, which is trimmed, without what no mesh reads.
func (r *reads) only(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Annotations = r.some(pod.Annotations)
	for _, list := range []*[]corev1.Container{&out.Spec.Containers, &out.Spec.InitContainers} {
		*list = slices.Clone(*list)
		for i, c := range *list {
			if !r.containers[c.Name] {
				(*list)[i] = corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, SecurityContext: c.SecurityContext}
				trimProbes(&(*list)[i], &c)
			}
		}
	}
	return &out
}
