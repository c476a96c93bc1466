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
address: ` + nodeIP + `
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]q}}
authorization: {mode: Webhook}
tlsCertFile: %[2]q
tlsPrivateKeyFile: %[3]q
readOnlyPort: 0
staticPodPath: ` + staticPods + `
cgroupDriver: cgroupfs
cgroupRoot: %[4]s
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix://` + containerd.Socket + `
resolvConf: ` + machine.Dir + `/resolv.conf
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

// startKubelet starts the kubelet and returns when the node is ready for pods. more is more of its configuration.
func (c *cluster) startKubelet(t testing.TB, more string) {
	t.Helper()
	c.launchKubelet(t, more)
	c.nodeReady(t)
}

// launchKubelet starts the kubelet on a node that has just booted.
func (c *cluster) launchKubelet(t testing.TB, more string) {
	t.Helper()
	user := "system:node:" + nodeName
	cert, key := c.Server.Certificate(t, user, []string{"system:nodes"}, nodeIP, nodeName)
	config, boot := filepath.Join(machine.Dir, "kubelet.yaml"), filepath.Join(machine.Dir, "boot-id")
	text := fmt.Sprintf(kubeletConfig, c.Server.CAFile(), cert, key, machine.CgroupParent())
	require.NoError(t, os.WriteFile(config, []byte(text+more), 0o644))
	require.NoError(t, os.MkdirAll(staticPods, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(machine.Dir, "resolv.conf"), []byte("nameserver "+nodeIP+"\n"), 0o644))
	c.bootID = string(uuid.NewUUID())
	require.NoError(t, os.WriteFile(boot, []byte(c.bootID+"\n"), 0o644))
	binary, err := kubetest.Component("kubelet")
	require.NoError(t, err)
	c.start(t, "kubelet", binary, "--config="+config, "--kubeconfig="+c.component(t, "kubelet", user, "system:nodes"),
		"--hostname-override="+nodeName, "--node-ip="+nodeIP, "--boot-id-file="+boot, "--v=2")
}

// nodeReady returns when the node is ready for pods, as the kubelet says that runs.
func (c *cluster) nodeReady(t testing.TB) {
	t.Helper()
	require.NoError(t, c.processes["kubelet"].WaitFor(90*time.Second, func() error {
		out, err := c.Try("kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")]}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.HasPrefix(out, c.bootID) || !strings.Contains(out, `"status":"True"`) {
			return fmt.Errorf("not ready: %s", out)
		}
		return nil
	}))
}
