package containerd

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
)

// Sandbox is a pod that the runtime has.
type Sandbox struct {
	// ID is the runtime's.
	ID string
	// Pod is what it was made from.
	Pod        *corev1.Pod
	r          *Runtime
	config     *cri.PodSandboxConfig
	containers map[string]string
	attempts   map[string]uint32
}

// PodLogs is where the containers' output is kept, by namespace_name.
const PodLogs = machine.Dir + "/pods"

// SandboxConfig is what a kubelet asks for to have a sandbox for the pod. Attempt
// counts the sandboxes that the pod had before.
func SandboxConfig(pod *corev1.Pod, attempt uint32) *cri.PodSandboxConfig {
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     pod.Name,
		LogDirectory: filepath.Join(PodLogs, pod.Namespace+"_"+pod.Name),
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
func (r *Runtime) RunSandbox(ctx context.Context, pod *corev1.Pod) (*Sandbox, error) {
	return r.run(ctx, pod, SandboxConfig(pod, 0))
}

func (r *Runtime) run(ctx context.Context, pod *corev1.Pod, config *cri.PodSandboxConfig) (*Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute) // a kubelet's patience
	defer cancel()
	if !pod.Spec.HostNetwork {
		if err := r.NetworkReady(ctx); err != nil {
			return nil, fmt.Errorf("sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	resp, err := r.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return nil, fmt.Errorf("sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return &Sandbox{ID: resp.PodSandboxId, Pod: pod, r: r, config: config, containers: map[string]string{}, attempts: map[string]uint32{}}, nil
}

// RunPod makes the pod's sandbox and starts its containers.
// Volumes that are no paths of the host are looked up in volumes, by name.
func (r *Runtime) RunPod(ctx context.Context, pod *corev1.Pod, volumes map[string]string) (*Sandbox, error) {
	return r.start(ctx, pod, SandboxConfig(pod, 0), volumes, map[string]uint32{})
}

func (r *Runtime) start(
	ctx context.Context, pod *corev1.Pod, config *cri.PodSandboxConfig, volumes map[string]string, attempts map[string]uint32,
) (*Sandbox, error) {
	s, err := r.run(ctx, pod, config)
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
func (s *Sandbox) Again(ctx context.Context, volumes map[string]string) (*Sandbox, error) {
	return s.r.start(ctx, s.Pod, SandboxConfig(s.Pod, s.config.Metadata.Attempt+1), volumes, maps.Clone(s.attempts))
}

// StartContainer makes and starts a container of the sandbox, as a kubelet does;
// again, after it has ended.
func (s *Sandbox) StartContainer(ctx context.Context, c *corev1.Container, volumes map[string]string) error {
	config, err := containerConfig(s.Pod, c, volumes)
	if err != nil {
		return err
	}
	config.Metadata.Attempt = s.attempts[c.Name]
	s.attempts[c.Name]++
	made, err := s.r.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: s.ID, Config: config, SandboxConfig: s.config})
	if err != nil {
		return fmt.Errorf("container %s of pod %s/%s: %w", c.Name, s.Pod.Namespace, s.Pod.Name, err)
	}
	s.containers[c.Name] = made.ContainerId
	if _, err := s.r.RuntimeServiceClient.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		return fmt.Errorf("start container %s of pod %s/%s: %w", c.Name, s.Pod.Namespace, s.Pod.Name, err)
	}
	return nil
}

// Container is the runtime's ID of a container.
func (s *Sandbox) Container(name string) string { return s.containers[name] }

// StopContainer asks a container to end, and kills it when patience is over.
func (s *Sandbox) StopContainer(ctx context.Context, name string, patience time.Duration) error {
	_, err := s.r.RuntimeServiceClient.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: s.containers[name], Timeout: int64(patience.Seconds())})
	return err
}

// KillContainer ends a container's first process as a crash does, and waits until
// the runtime has seen it.
func (s *Sandbox) KillContainer(ctx context.Context, name string) error {
	status, err := s.r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: s.containers[name], Verbose: true})
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
func (s *Sandbox) WaitContainer(ctx context.Context, name string) (code int32, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		status, err := s.r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: s.containers[name]})
		if err != nil {
			return 0, fmt.Errorf("wait for container %s of pod %s/%s: %w", name, s.Pod.Namespace, s.Pod.Name, err)
		}
		if status.GetStatus().GetState() == cri.ContainerState_CONTAINER_EXITED {
			return status.GetStatus().GetExitCode(), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for container %s of pod %s/%s: %w", name, s.Pod.Namespace, s.Pod.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Output is what a container has written so far, all attempts together, in the
// form of the CRI: a time, the stream and F or P before each line.
func (s *Sandbox) Output(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.config.LogDirectory, name+".log"))
	return string(text)
}

// Exec runs a program in a container and returns what it printed. The error has
// its exit code and what it complained of.
func (s *Sandbox) Exec(ctx context.Context, container string, args ...string) (string, error) {
	resp, err := s.r.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: s.containers[container], Cmd: args, Timeout: 60})
	if err != nil {
		return "", fmt.Errorf("exec in container %s of pod %s/%s: %w", container, s.Pod.Namespace, s.Pod.Name, err)
	}
	if resp.ExitCode != 0 {
		return string(resp.Stdout), fmt.Errorf("exec in container %s of pod %s/%s: exit code %d: %s", container, s.Pod.Namespace, s.Pod.Name, resp.ExitCode, resp.Stderr)
	}
	return string(resp.Stdout), nil
}

// Status is the sandbox's, with all that the runtime tells.
func (s *Sandbox) Status(ctx context.Context) (*cri.PodSandboxStatusResponse, error) {
	return s.r.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.ID, Verbose: true})
}

// IPs are the sandbox's addresses.
func (s *Sandbox) IPs(ctx context.Context) ([]netip.Addr, error) {
	status, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	network := status.GetStatus().GetNetwork()
	var addrs []netip.Addr
	for _, text := range append([]string{network.GetIp()}, additional(network)...) {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("address of pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

func additional(n *cri.PodSandboxNetworkStatus) (ips []string) {
	for _, ip := range n.GetAdditionalIps() {
		ips = append(ips, ip.Ip)
	}
	return ips
}

// NetNS is the path of the sandbox's network namespace.
func (s *Sandbox) NetNS(ctx context.Context) (string, error) {
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
func (s *Sandbox) Stop(ctx context.Context) error {
	_, err := s.r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.ID})
	return err
}

// Remove stops and removes the sandbox and its containers.
func (s *Sandbox) Remove(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	_, err := s.r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.ID})
	return err
}

// Sandboxes are the IDs of all sandboxes that the runtime knows, ready or not.
func (r *Runtime) Sandboxes(ctx context.Context) (ids []string, err error) {
	resp, err := r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	for _, s := range resp.GetItems() {
		ids = append(ids, s.Id)
	}
	return ids, err
}

// RemoveAll removes all sandboxes, whoever made them, some at a time.
func (r *Runtime) RemoveAll(ctx context.Context) error {
	return r.RemoveAllBut(ctx, func(string, string) bool { return false })
}

// RemoveAllBut is RemoveAll, but for the sandboxes that keep says.
func (r *Runtime) RemoveAllBut(ctx context.Context, keep func(namespace, name string) bool) error {
	resp, err := r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, s := range resp.GetItems() {
		if m := s.GetMetadata(); !keep(m.GetNamespace(), m.GetName()) {
			g.Go(func() error {
				if err := (&Sandbox{ID: s.Id, r: r}).Remove(ctx); err != nil {
					return fmt.Errorf("remove sandbox of pod %s/%s: %w", m.GetNamespace(), m.GetName(), err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}
