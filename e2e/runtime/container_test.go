package runtime

import (
	"cmp"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a kubelet keeps from containers that are not privileged.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// containerConfig is what a kubelet asks for to have the container.
func containerConfig(pod *corev1.Pod, c *corev1.Container, volumes map[string]string) (*cri.ContainerConfig, error) {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Name},
		Image:    &cri.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
		Command:  c.Command, Args: c.Args, WorkingDir: c.WorkingDir,
		LogPath: c.Name + ".log",
		Linux:   &cri.LinuxContainerConfig{SecurityContext: securityContext(pod, c)},
	}
	for _, e := range c.Env {
		value, err := envValue(pod, e)
		if err != nil {
			return nil, fmt.Errorf("container %s of pod %s/%s: %w", c.Name, pod.Namespace, pod.Name, err)
		}
		config.Envs = append(config.Envs, &cri.KeyValue{Key: e.Name, Value: []byte(value)})
	}
	for _, m := range c.VolumeMounts {
		host, ok := volumes[m.Name]
		if !ok {
			host, ok = hostPath(pod, m.Name)
		}
		if !ok {
			return nil, fmt.Errorf("container %s of pod %s/%s: volume %s is no path of the host", c.Name, pod.Namespace, pod.Name, m.Name)
		}
		mount := &cri.Mount{ContainerPath: m.MountPath, HostPath: filepath.Join(host, m.SubPath), Readonly: m.ReadOnly}
		if m.MountPropagation != nil {
			mount.Propagation = map[corev1.MountPropagationMode]cri.MountPropagation{
				corev1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
				corev1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
			}[*m.MountPropagation]
		}
		config.Mounts = append(config.Mounts, mount)
	}
	return config, nil
}

func envValue(pod *corev1.Pod, e corev1.EnvVar) (string, error) {
	if e.ValueFrom == nil {
		return e.Value, nil
	}
	if f := e.ValueFrom.FieldRef; f != nil {
		switch f.FieldPath {
		case "metadata.name":
			return pod.Name, nil
		case "metadata.namespace":
			return pod.Namespace, nil
		case "metadata.uid":
			return string(pod.UID), nil
		case "spec.nodeName":
			return pod.Spec.NodeName, nil
		case "spec.serviceAccountName":
			return pod.Spec.ServiceAccountName, nil
		case "status.podIP": // of a pod on the node's network, the node's
			return cmp.Or(pod.Status.PodIP, "127.0.0.1"), nil
		}
	}
	return "", fmt.Errorf("environment variable %s has a source that is not known here", e.Name)
}

// hostPath is the path of a volume that is one of the host's.
func hostPath(pod *corev1.Pod, name string) (string, bool) {
	for _, v := range pod.Spec.Volumes {
		if v.Name == name && v.HostPath != nil {
			return v.HostPath.Path, true
		}
	}
	return "", false
}

func securityContext(pod *corev1.Pod, c *corev1.Container) *cri.LinuxContainerSecurityContext {
	s := &cri.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces(pod), Seccomp: runtimeDefault(), MaskedPaths: maskedPaths, ReadonlyPaths: readonlyPaths,
		Capabilities: &cri.Capability{},
	}
	if p := pod.Spec.SecurityContext; p != nil {
		s.RunAsUser, s.RunAsGroup = id(p.RunAsUser), id(p.RunAsGroup)
		if p.SeccompProfile != nil {
			s.Seccomp = seccomp(p.SeccompProfile)
		}
	}
	sc := c.SecurityContext
	if sc == nil {
		return s
	}
	if sc.RunAsUser != nil {
		s.RunAsUser = id(sc.RunAsUser)
	}
	if sc.RunAsGroup != nil {
		s.RunAsGroup = id(sc.RunAsGroup)
	}
	if sc.SeccompProfile != nil {
		s.Seccomp = seccomp(sc.SeccompProfile)
	}
	if sc.Privileged != nil && *sc.Privileged {
		s.Privileged, s.MaskedPaths, s.ReadonlyPaths = true, nil, nil
	}
	s.ReadonlyRootfs = sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem
	s.NoNewPrivs = sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation
	if sc.Capabilities != nil {
		for _, capability := range sc.Capabilities.Add {
			s.Capabilities.AddCapabilities = append(s.Capabilities.AddCapabilities, string(capability))
		}
		for _, capability := range sc.Capabilities.Drop {
			s.Capabilities.DropCapabilities = append(s.Capabilities.DropCapabilities, string(capability))
		}
	}
	return s
}

func id(n *int64) *cri.Int64Value {
	if n == nil {
		return nil
	}
	return &cri.Int64Value{Value: *n}
}

func seccomp(p *corev1.SeccompProfile) *cri.SecurityProfile {
	if p.Type == corev1.SeccompProfileTypeUnconfined {
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	}
	return runtimeDefault()
}
