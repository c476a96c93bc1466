package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// sandbox is a pod that the runtime has.
type sandbox struct {
	ID         string
	Pod        *corev1.Pod
	n          *node
	config     *cri.PodSandboxConfig
	containers map[string]string // IDs by name
	attempts   map[string]uint32 // of containers, by name
}

// sandboxConfig is what a kubelet asks for to have a sandbox for the pod. Attempt counts the sandboxes that the pod had
// before.
func sandboxConfig(pod *corev1.Pod, attempt uint32) *cri.PodSandboxConfig {
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     pod.Name,
		LogDirectory: filepath.Join(machine.Dir, "pods", pod.Namespace+"_"+pod.Name),
		Labels:       pod.Labels, Annotations: map[string]string{"kubernetes.io/config.source": "api"}, DnsConfig: &cri.DNSConfig{},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    filepath.Join(machine.CgroupParent(), "pod"+string(pod.UID)),
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces(pod), Seccomp: runtimeDefault()},
		},
	}
	maps.Copy(c.Annotations, pod.Annotations) // beside a kubelet's own
	if pod.Spec.HostNetwork {
		c.Hostname = "" // the host's
	}
	for _, container := range pod.Spec.Containers {
		for _, p := range container.Ports {
			if p.HostPort != 0 {
				c.PortMappings = append(c.PortMappings, &cri.PortMapping{
					Protocol: cri.Protocol(cri.Protocol_value[string(p.Protocol)]), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
				})
			}
		}
	}
	return c
}

// podUsers is the first of the host's user IDs that pods with a user namespace get.
const podUsers = 1 << 20

func namespaces(pod *corev1.Pod) *cri.NamespaceOption {
	o := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
	if pod.Spec.HostNetwork {
		o.Network = cri.NamespaceMode_NODE
	}
	if pod.Spec.HostPID {
		o.Pid = cri.NamespaceMode_NODE
	}
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		ids := []*cri.IDMapping{{HostId: podUsers, ContainerId: 0, Length: 65536}}
		o.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	}
	return o
}

func runtimeDefault() *cri.SecurityProfile {
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

// RunSandbox makes the pod's sandbox, which is when the network plugins run.
func (n *node) RunSandbox(ctx context.Context, pod *corev1.Pod) (*sandbox, error) {
	return n.runSandbox(ctx, pod, sandboxConfig(pod, 0))
}

func (n *node) runSandbox(ctx context.Context, pod *corev1.Pod, config *cri.PodSandboxConfig) (*sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute) // a kubelet's patience
	defer cancel()
	if !pod.Spec.HostNetwork {
		if err := n.NetworkReady(ctx); err != nil {
			return nil, fmt.Errorf("sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	resp, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return nil, fmt.Errorf("sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return &sandbox{ID: resp.PodSandboxId, Pod: pod, n: n, config: config, containers: map[string]string{}, attempts: map[string]uint32{}}, nil
}

// RunPod makes the pod's sandbox and starts its containers.
// Volumes that are no paths of the host are looked up in volumes, by name.
func (n *node) RunPod(ctx context.Context, pod *corev1.Pod, volumes map[string]string) (*sandbox, error) {
	return n.start(ctx, pod, sandboxConfig(pod, 0), volumes, map[string]uint32{})
}

func (n *node) start(
	ctx context.Context, pod *corev1.Pod, config *cri.PodSandboxConfig, volumes map[string]string, attempts map[string]uint32,
) (*sandbox, error) {
	s, err := n.runSandbox(ctx, pod, config)
	if err != nil {
		return nil, err
	}
	s.attempts = attempts
	for i := range pod.Spec.Containers {
		if err := s.StartContainer(ctx, &pod.Spec.Containers[i], volumes); err != nil {
			_ = s.Remove(context.WithoutCancel(ctx))
			return nil, err
		}
	}
	return s, nil
}

// Again makes another sandbox for the pod and starts its containers, as a kubelet
// does when the first is no more: that has to be stopped before.
func (s *sandbox) Again(ctx context.Context, volumes map[string]string) (*sandbox, error) {
	return s.n.start(ctx, s.Pod, sandboxConfig(s.Pod, s.config.Metadata.Attempt+1), volumes, maps.Clone(s.attempts))
}

// StartContainer makes and starts a container of the sandbox, as a kubelet does;
// again, after it has ended.
func (s *sandbox) StartContainer(ctx context.Context, c *corev1.Container, volumes map[string]string) error {
	config, err := containerConfig(s.Pod, c, volumes)
	if err != nil {
		return err
	}
	config.Metadata.Attempt = s.attempts[c.Name]
	s.attempts[c.Name]++
	made, err := s.n.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: s.ID, Config: config, SandboxConfig: s.config})
	if err != nil {
		return fmt.Errorf("container %s of pod %s/%s: %w", c.Name, s.Pod.Namespace, s.Pod.Name, err)
	}
	s.containers[c.Name] = made.ContainerId
	if _, err := s.n.containerRuntime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		return fmt.Errorf("start container %s of pod %s/%s: %w", c.Name, s.Pod.Namespace, s.Pod.Name, err)
	}
	return nil
}

// StopContainer asks a container to end, and kills it when patience is over.
func (s *sandbox) StopContainer(ctx context.Context, name string, patience time.Duration) error {
	_, err := s.n.containerRuntime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: s.containers[name], Timeout: int64(patience.Seconds())})
	return err
}

// KillContainer ends a container's first process as a crash does, and waits until
// the runtime has seen it.
func (s *sandbox) KillContainer(ctx context.Context, name string) error {
	status, err := s.n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: s.containers[name], Verbose: true})
	if err != nil {
		return err
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil {
		return fmt.Errorf("what the runtime tells of container %s: %w", name, err)
	}
	if info.Pid <= 1 {
		return fmt.Errorf("container %s has no process", name)
	}
	if err := syscall.Kill(info.Pid, syscall.SIGKILL); err != nil {
		return err
	}
	_, err = s.WaitContainer(ctx, name)
	return err
}

// WaitContainer waits for a container's end and returns its exit code.
func (s *sandbox) WaitContainer(ctx context.Context, name string) (code int32, err error) {
	err = proctest.Poll(netnstest.Patience, func() error {
		status, err := s.n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: s.containers[name]})
		if state := status.GetStatus().GetState(); err == nil && state != cri.ContainerState_CONTAINER_EXITED {
			err = fmt.Errorf("container %s of pod %s/%s: %s", name, s.Pod.Namespace, s.Pod.Name, state)
		}
		code = status.GetStatus().GetExitCode()
		return err
	})
	return code, err
}

// Output is what a container has written so far, all attempts together, in the
// form of the CRI: a time, the stream and F or P before each line.
func (s *sandbox) Output(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.config.LogDirectory, name+".log"))
	return string(text)
}

// Exec runs a program in a container and returns what it printed. The error has
// its exit code and what it complained of.
func (s *sandbox) Exec(ctx context.Context, container string, args ...string) (string, error) {
	resp, err := s.n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: s.containers[container], Cmd: args, Timeout: 60})
	if err != nil {
		return "", fmt.Errorf("exec in container %s of pod %s/%s: %w", container, s.Pod.Namespace, s.Pod.Name, err)
	}
	if resp.ExitCode != 0 {
		return string(resp.Stdout), fmt.Errorf("exec in container %s of pod %s/%s: exit code %d: %s", container, s.Pod.Namespace, s.Pod.Name, resp.ExitCode, resp.Stderr)
	}
	return string(resp.Stdout), nil
}

// Status is the sandbox's, with all that the runtime tells.
func (s *sandbox) Status(ctx context.Context) (*cri.PodSandboxStatusResponse, error) {
	return s.n.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.ID, Verbose: true})
}

// IPs are the sandbox's addresses.
func (s *sandbox) IPs(ctx context.Context) ([]netip.Addr, error) {
	status, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	network := status.GetStatus().GetNetwork()
	var addrs []netip.Addr
	for _, ip := range append([]*cri.PodIP{{Ip: network.GetIp()}}, network.GetAdditionalIps()...) {
		addr, err := netip.ParseAddr(ip.Ip)
		if err != nil {
			return nil, fmt.Errorf("address of pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// NetNS is the path of the sandbox's network namespace.
func (s *sandbox) NetNS(ctx context.Context) (string, error) {
	status, err := s.Status(ctx)
	if err != nil {
		return "", err
	}
	var info struct {
		RuntimeSpec struct {
			Linux struct{ Namespaces []struct{ Type, Path string } }
		}
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil {
		return "", fmt.Errorf("what the runtime tells of pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
	}
	for _, ns := range info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" {
			return ns.Path, nil
		}
	}
	return "", fmt.Errorf("the runtime tells of no network namespace of pod %s/%s", s.Pod.Namespace, s.Pod.Name)
}

// Stop stops the sandbox, which is when the network plugins run for the second
// time.
func (s *sandbox) Stop(ctx context.Context) error {
	_, err := s.n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.ID})
	return err
}

// Remove stops and removes the sandbox and its containers.
func (s *sandbox) Remove(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	_, err := s.n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.ID})
	return err
}

// RemoveAll removes all sandboxes, whoever made them, some at a time.
func (n *node) RemoveAll(ctx context.Context) error {
	resp, err := n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, s := range resp.GetItems() {
		g.Go(func() error {
			if err := (&sandbox{ID: s.Id, n: n}).Remove(ctx); err != nil {
				return fmt.Errorf("remove sandbox of pod %s/%s: %w", s.Metadata.GetNamespace(), s.Metadata.GetName(), err)
			}
			return nil
		})
	}
	return g.Wait()
}
