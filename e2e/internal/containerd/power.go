package containerd

import "github.com/meshcni/meshcni/e2e/internal/machine"

// kubeletPods has pods' volumes, some of which are mounts.
const kubeletPods = "/var/lib/kubelet/pods"

// LosePower does to the machine what a loss of power does; see [machine.LosePower]. Nothing of the runtime in /run is left. more
// are patterns of what else is in memory. [daemon.Daemon.Boot] starts the runtime again.
func (r *Runtime) LosePower(more ...string) error {
	r.Kill()
	return machine.LosePower([]string{State, "/run/netns", kubeletPods}, append([]string{State + "/*", "/run/netns/*"}, more...)...)
}
