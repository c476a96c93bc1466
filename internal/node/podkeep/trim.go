package podkeep

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshcni/meshcni/internal/node/probeports"
)

// Trim returns a pod with only what a dialect may read, and what an agent reads of running pods besides: a node keeps all of
// its pods in memory, and hands them to the plugin. It shares memory with the original.
//
// What remains of the metadata are the names, UID, resource version, labels, annotations (except kubectl's copy of the whole
// pod), times of creation and deletion, and the owner; of the spec, what decides about users, namespaces, DNS, scheduling and
// restarts; of each container and init container its name, image, command, arguments, ports, environment, restart policy and
// security context, and the ports that its probes and hooks ask; of the status the phase, the addresses, and how the init containers are
// and were. There are no volumes, resources or ephemeral containers.
func Trim(pod *corev1.Pod) *corev1.Pod {
	if pod == nil {
		return nil
	}
	s := &pod.Spec
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, Annotations: pod.Annotations,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{
			NodeName: s.NodeName, ServiceAccountName: s.ServiceAccountName, RestartPolicy: s.RestartPolicy,
			SchedulerName: s.SchedulerName,
			HostNetwork:   s.HostNetwork, HostPID: s.HostPID, HostIPC: s.HostIPC, HostUsers: s.HostUsers, ShareProcessNamespace: s.ShareProcessNamespace,
			SecurityContext: s.SecurityContext, DNSPolicy: s.DNSPolicy, DNSConfig: s.DNSConfig, RuntimeClassName: s.RuntimeClassName, OS: s.OS,
			InitContainers: trimContainers(s.InitContainers), Containers: trimContainers(s.Containers),
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs, NominatedNodeName: pod.Status.NominatedNodeName,
		},
	}
	for _, st := range pod.Status.InitContainerStatuses {
		out.Status.InitContainerStatuses = append(out.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: st.Name, State: st.State, LastTerminationState: st.LastTerminationState,
		})
	}
	if _, has := pod.Annotations[corev1.LastAppliedConfigAnnotation]; has { // often the largest part of a pod
		out.Annotations = maps.Clone(pod.Annotations)
		delete(out.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return out
}

func trimContainers(all []corev1.Container) []corev1.Container {
	out := slices.Clone(all)
	for i, c := range all {
		out[i] = corev1.Container{
			Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, Ports: c.Ports, EnvFrom: c.EnvFrom, Env: c.Env,
			RestartPolicy: c.RestartPolicy, SecurityContext: c.SecurityContext,
		}
		trimProbes(&out[i], &c)
	}
	return out
}

// trimProbes keeps of a container's probes and hooks the ports that they ask, as numbers.
func trimProbes(out, c *corev1.Container) {
	ask := func(port uint16) *corev1.TCPSocketAction {
		return &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}
	}
	probe := func(p *corev1.Probe) *corev1.Probe {
		if port := probeports.Of(c, p); port != 0 {
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: ask(port)}}
		}
		return nil
	}
	out.LivenessProbe, out.ReadinessProbe, out.StartupProbe = probe(c.LivenessProbe), probe(c.ReadinessProbe), probe(c.StartupProbe)
	if l := c.Lifecycle; l != nil {
		var kept corev1.Lifecycle
		if port := probeports.OfHook(c, l.PostStart); port != 0 {
			kept.PostStart = &corev1.LifecycleHandler{TCPSocket: ask(port)}
		}
		if port := probeports.OfHook(c, l.PreStop); port != 0 {
			kept.PreStop = &corev1.LifecycleHandler{TCPSocket: ask(port)}
		}
		if kept != (corev1.Lifecycle{}) {
			out.Lifecycle = &kept
		}
	}
}
