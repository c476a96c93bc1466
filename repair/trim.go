package repair

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lastApplied holds a second copy of what a user applied
// (corev1.LastAppliedConfigAnnotation), often the largest part of a pod.
const lastApplied = corev1.LastAppliedConfigAnnotation

// Trim returns a pod with only what diagnosis, selection and a dialect's Build
// read, so that a cache of pods stays small. The result shares nothing with the
// pod but what is never written. Actions do not rely on it: they read the pod anew.
func Trim(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
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
	for k, v := range pod.Annotations {
		if k == lastApplied {
			continue
		}
		if out.Annotations == nil {
			out.Annotations = make(map[string]string, len(pod.Annotations))
		}
		out.Annotations[k] = v
	}
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			out.OwnerReferences = []metav1.OwnerReference{o}
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		out.Status.InitContainerStatuses = append(out.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState,
		})
	}
	return out
}

func trimContainers(all []corev1.Container) []corev1.Container {
	if len(all) == 0 {
		return nil
	}
	out := make([]corev1.Container, len(all))
	for i, c := range all {
		out[i] = corev1.Container{
			Name: c.Name, Args: c.Args, Env: c.Env, Ports: c.Ports,
			RestartPolicy: c.RestartPolicy, SecurityContext: c.SecurityContext,
		}
	}
	return out
}

// trim is Trim as an informer's transform.
func trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return Trim(o), nil
	default: // bookmarks and tombstones
		return obj, nil
	}
}
