package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
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
containerRuntimeEndpoint: unix://` + containerd.Socket + `
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

// staticPods has the manifests of pods that the kubelet starts by itself.
const staticPods = machine.Dir + "/static-pods"

// kubeletNode is a node to be, as its kubelet is told.
type kubeletNode struct {
	name, ip string
	// statics is the directory of the pods that the kubelet starts by itself, and cgroups the control group of all of its pods.
	statics, cgroups string
	// inside is the process whose namespaces are the node's; 0: they are the machine's.
	inside int
}

func firstNode() kubeletNode {
	return kubeletNode{name: nodeName, ip: nodeIP, statics: staticPods, cgroups: machine.CgroupParent()}
}

// startKubelet starts the kubelet and returns when the node is ready for pods. more is more of its configuration.
func (c *cluster) startKubelet(t testing.TB, more string) {
	t.Helper()
	c.launchKubelet(t, more)
	c.nodeReady(t)
}

// launchKubelet starts the kubelet on a node that has just booted.
func (c *cluster) launchKubelet(t testing.TB, more string) {
	t.Helper()
	c.bootID = c.launch(t, "kubelet", firstNode(), more)
}

// launch starts a node's kubelet under a name, and returns the identity of its boot.
func (c *cluster) launch(t testing.TB, process string, n kubeletNode, more string) (bootID string) {
	t.Helper()
	user := "system:node:" + n.name
	cert, key := c.Server.Certificate(t, user, []string{"system:nodes"}, n.ip, n.name)
	config, boot, resolv := filepath.Join(machine.Dir, process+".yaml"), filepath.Join(machine.Dir, process+".boot-id"), filepath.Join(machine.Dir, "resolv.conf")
	text := fmt.Sprintf(kubeletConfig, c.Server.CAFile(), cert, key, n.cgroups, n.ip, n.statics, resolv)
	require.NoError(t, os.WriteFile(config, []byte(text+more), 0o644))
	require.NoError(t, os.MkdirAll(n.statics, 0o755))
	require.NoError(t, os.WriteFile(resolv, []byte("nameserver "+nodeIP+"\n"), 0o644))
	bootID = string(uuid.NewUUID())
	require.NoError(t, os.WriteFile(boot, []byte(bootID+"\n"), 0o644))
	binary, err := kubetest.Component("kubelet")
	require.NoError(t, err)
	command := inside(n.inside, binary, "--config="+config, "--kubeconfig="+c.component(t, process, user, "system:nodes"),
		"--hostname-override="+n.name, "--node-ip="+n.ip, "--boot-id-file="+boot, "--v=2")
	c.start(t, process, command[0], command[1:]...)
	return bootID
}

// nodeReady returns when the node is ready for pods, as the kubelet says that runs.
func (c *cluster) nodeReady(t testing.TB) {
	t.Helper()
	c.ready(t, "kubelet", nodeName, c.bootID)
}

// ready returns when a node is ready for pods, as the kubelet of its boot says.
func (c *cluster) ready(t testing.TB, process, name, bootID string) {
	t.Helper()
	require.NoError(t, c.processes[process].WaitFor(90*time.Second, func() error {
		out, err := c.Try("kubectl", "get", "node", name, "-o", `jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")]}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.HasPrefix(out, bootID) || !strings.Contains(out, `"status":"True"`) {
			return fmt.Errorf("not ready: %s", out)
		}
		return nil
	}))
}
