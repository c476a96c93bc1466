package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

func (c *cluster) startKubelet(t testing.TB) {
	t.Helper()
	user := "system:node:" + nodeName
	cert, key := c.Server.Certificate(t, user, []string{"system:nodes"}, nodeIP, nodeName)
	config := filepath.Join(machine.Dir, "kubelet.yaml")
	text := fmt.Sprintf(kubeletConfig, c.Server.CAFile(), cert, key, machine.CgroupParent())
	require.NoError(t, os.WriteFile(config, []byte(text), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(machine.Dir, "resolv.conf"), []byte("nameserver "+nodeIP+"\n"), 0o644))
	binary, err := kubetest.Component("kubelet")
	require.NoError(t, err)
	p := c.start(t, "kubelet", binary, "--config="+config, "--kubeconfig="+c.component(t, "kubelet", user, "system:nodes"),
		"--hostname-override="+nodeName, "--node-ip="+nodeIP, "--v=2")
	require.NoError(t, p.WaitFor(90*time.Second, func() error {
		out, err := c.Try("kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.Contains(out, `"status":"True"`) {
			return fmt.Errorf("not ready: %s", out)
		}
		return nil
	}))
}
