package repair

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim reduces pods in the informer's cache to save memory; other objects (bookmarks, tombstones) stay as they are.
func trim(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		return trimPod(pod), nil
	}
	return obj, nil
}

// trimPod returns the pod with only what Diagnose, selection and the dialects read. It shares memory with the original.
// Actions read the pod anew.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, Annotations: pod.Annotations,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, RestartPolicy: pod.Spec.RestartPolicy,
			SchedulerName: pod.Spec.SchedulerName, ServiceAccountName: pod.Spec.ServiceAccountName,
			SecurityContext: pod.Spec.SecurityContext, DNSPolicy: pod.Spec.DNSPolicy, DNSConfig: pod.Spec.DNSConfig,
			InitContainers: trimContainers(pod.Spec.InitContainers),
			Containers:     trimContainers(pod.Spec.Containers),
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs,
			NominatedNodeName: pod.Status.NominatedNodeName,
		},
	}
	if _, has := pod.Annotations[corev1.LastAppliedConfigAnnotation]; has { // often the largest part of a pod
		out.Annotations = maps.Clone(pod.Annotations)
		delete(out.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		out.Status.InitContainerStatuses = append(out.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState,
		})
	}
	return out
}

func trimContainers(all []corev1.Container) []corev1.Container {
	out := slices.Clone(all)
	for i, c := range all {
		out[i] = corev1.Container{
			Name: c.Name, Args: c.Args, Env: c.Env, Ports: c.Ports,
			RestartPolicy: c.RestartPolicy, SecurityContext: c.SecurityContext,
		}
	}
	return out
}
