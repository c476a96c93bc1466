package onenode

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// kubeletConfig: control groups of our own, also of version 1; no pressure from a disk or a swap that is the machine's. A
// changed ConfigMap is soon in its volumes, and what has failed is soon tried again.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[5]s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]q}}
authorization: {mode: Webhook}
tlsCertFile: %[2]q
tlsPrivateKeyFile: %[3]q
readOnlyPort: 0
staticPodPath: %[6]s
cgroupDriver: cgroupfs
cgroupRoot: %[4]s
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix://%[8]s
resolvConf: %[7]s
clusterDomain: cluster.local
clusterDNS: [10.77.0.10]
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 5s
syncFrequency: 2s
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
featureGates: {KubeletCrashLoopBackOffMax: true}
`

// StaticPods has the manifests of pods that the kubelet starts by itself.
const StaticPods = machine.Dir + "/static-pods"

// Node is a node to be, as its kubelet is told.
type Node struct {
	Name, IP string
	// Statics is the directory of the pods that the kubelet starts by itself, and Cgroups the control group of all of its pods.
	Statics, Cgroups string
	// Inside is the process whose namespaces are the node's; 0: they are the machine's.
	Inside int
}

// Inside is a command in the mount and network namespaces of a process; 0: as it is.
func Inside(pid int, command ...string) []string {
	if pid == 0 {
		return command
	}
	return append([]string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--net", "--"}, command...)
}

// StartKubelet starts the kubelet and returns when the node is ready for pods. more is more of its configuration.
func (c *Cluster) StartKubelet(more string) error {
	if err := c.LaunchKubelet(more); err != nil {
		return err
	}
	return c.NodeReady()
}

// LaunchKubelet starts the kubelet on a node that has just booted.
func (c *Cluster) LaunchKubelet(more string) (err error) {
	c.BootID, err = c.Launch("kubelet", Node{Name: NodeName, IP: NodeIP, Statics: StaticPods, Cgroups: machine.CgroupParent()}, more)
	return err
}

// Launch starts a node's kubelet under a name, and returns the identity of its boot.
func (c *Cluster) Launch(process string, n Node, more string) (bootID string, err error) {
	user := "system:node:" + n.Name
	cert, key, err := c.Server.Issue(user, []string{"system:nodes"}, n.IP, n.Name)
	if err != nil {
		return "", err
	}
	config, boot, resolv := filepath.Join(machine.Dir, process+".yaml"), filepath.Join(machine.Dir, process+".boot-id"), filepath.Join(machine.Dir, "resolv.conf")
	if err := os.MkdirAll(n.Statics, 0o755); err != nil {
		return "", err
	}
	bootID = string(uuid.NewUUID())
	for path, text := range map[string]string{
		config: fmt.Sprintf(kubeletConfig, c.Server.CAFile(), cert, key, n.Cgroups, n.IP, n.Statics, resolv, c.socket) + more,
		resolv: "nameserver " + NodeIP + "\n",
		boot:   bootID + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	binary, err := kubetest.Component("kubelet")
	if err != nil {
		return "", err
	}
	kubeconfig, err := c.component(process, user, "system:nodes")
	if err != nil {
		return "", err
	}
	command := Inside(n.Inside, binary, "--config="+config, "--kubeconfig="+kubeconfig,
		"--hostname-override="+n.Name, "--node-ip="+n.IP, "--boot-id-file="+boot, "--v=2")
	return bootID, c.Start(process, command[0], command[1:]...)
}

// NodeReady returns when the node is ready for pods, as the kubelet says that runs.
func (c *Cluster) NodeReady() error { return c.Ready("kubelet", NodeName, c.BootID) }

// Ready returns when a node is ready for pods, as the kubelet of its boot says.
func (c *Cluster) Ready(process, name, bootID string) error {
	return c.Processes[process].WaitFor(5*time.Minute, func() error {
		out, err := c.Try("kubectl", "get", "node", name, "-o", `jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")]}`)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(out, bootID) || !strings.Contains(out, `"status":"True"`) {
			return fmt.Errorf("not ready: %s", out)
		}
		return nil
	})
}
