//go:build linux

package installer

import (
	"encoding/json"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// programs is where the plugin is built, once for all tests; TestMain removes it.
var programs string

// cluster is a node with the real plugin, the runtime library, and an API server that has one pod of the mesh.
type cluster struct {
	*node
	server *apiservertest.APIServer
	cni    *libcni.CNIConfig
}

const netns = "10.244.1.5/24"

// primary gives the address that the test world has already.
const primary = `#!/bin/sh
case "$CNI_COMMAND" in
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"` + netns + `","interface":0}]}' ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
esac
`

var primaryList = strings.Replace(calicoList, "0.3.1", "1.0.0", 1)

func newCluster(t *testing.T) *cluster {
	t.Helper()
	netnstest.Require(t, netnstest.Root)
	if programs == "" {
		dir, err := os.MkdirTemp("", "meshcni-installer-test-")
		require.NoError(t, err)
		programs = dir
	}
	binary, err := binarytest.Build(programs, binarytest.Command)
	require.NoError(t, err)
	c := &cluster{newNode(t, map[string]string{"10-calico.conflist": primaryList}), apiservertest.NewAPIServer(t), nil}
	c.put(filepath.Join(c.BinSourceDir, pluginName), c.read(binary))
	require.NoError(t, os.Chmod(filepath.Join(c.BinSourceDir, pluginName), 0o755))
	c.write(filepath.Join(c.CNIBinDirs[0], "calico"), primary, 0o755)
	c.write(filepath.Join(c.ServiceAccountDir, "ca.crt"), string(c.server.CA()), 0o644)
	c.write(filepath.Join(c.ServiceAccountDir, "token"), c.server.Token(), 0o600)
	u, err := url.Parse(c.server.URL())
	require.NoError(t, err)
	c.KubernetesHost, c.KubernetesPort = u.Hostname(), u.Port()
	c.Plugin.AddDeadline = 2e9
	c.server.SetPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "u1", Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy", Args: []string{"proxy", "sidecar"}}}},
	})
	c.cni = libcni.NewCNIConfigWithCacheDir(c.CNIBinDirs, c.CNICacheDir, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	return c
}

// runtime loads the network as containerd does.
func (c *cluster) runtime() *libcni.NetworkConfigList {
	c.t.Helper()
	list, err := libcni.ConfListFromFile(c.conf(c.loaded().Name))
	require.NoError(c.t, err)
	return list
}

func sandbox(w *netnstest.World, namespace, pod string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "sandbox-" + pod, NetNS: w.Pod.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", pod}, {"K8S_POD_UID", "u1"}},
	}
}

func fate(w *netnstest.World) string {
	probe := netnstest.Probe{From: "pod", Proto: "tcp", UID: 1000, GID: 1000, Dst: netip.MustParseAddrPort("10.96.5.5:80")}
	return w.Run([]netnstest.Probe{probe})[probe.String()]
}

const (
	bypass   = "out:80 orig=10.96.5.5:80"
	captured = "proxy:15001 orig=10.96.5.5:80"
)

// After a reboot the run directory is empty and the primary plugin has written its own file anew, before the agent is up.
// With a file of our own, a pod is then refused, not started outside of the mesh; and started when the agent is up.
func TestRebootRefusesPodsUntilTheAgentIsUp(t *testing.T) {
	c := newCluster(t)
	c.OwnFile = SwitchOn
	a, stop := c.agent(onEvents)
	within(t, patience, "ready", ready(a))
	stop()

	require.NoError(t, os.RemoveAll(c.RunDir))
	c.put(c.conf("10-calico.conflist"), primaryList)
	w := netnstest.NewWorld(t, netnstest.Options{})
	rt := sandbox(w, "shop", "cart-0")
	list := c.runtime()
	require.Len(t, list.Plugins, 2)
	require.Error(t, c.cni.GetStatusNetworkList(t.Context(), withVersion(t, list, "1.1.0")))
	_, err := c.cni.AddNetworkList(t.Context(), list, rt)
	require.ErrorContains(t, err, "kubeconfig")
	require.NoError(t, c.cni.DelNetworkList(t.Context(), list, rt))

	var out proctest.Buffer
	b, _ := c.agent(func(o *Options) { onEvents(o); o.PluginLog = &out })
	within(t, patience, "ready", ready(b))
	_, err = c.cni.AddNetworkList(t.Context(), c.runtime(), rt)
	require.NoError(t, err)
	assert.Equal(t, captured, fate(w))
	within(t, patience, "the agent printed the decision", func() bool {
		return strings.Contains(out.String(), `"msg":"decision"`) && strings.Contains(out.String(), "cart-0")
	})
	within(t, patience, "and counted it", func() bool {
		m := scrape(t, b)
		return strings.Contains(m, "meshcni_plugin_decisions_total{") && strings.Contains(m, "meshcni_plugin_add_duration_seconds_count 1\n")
	})
	require.NoError(t, c.cni.DelNetworkList(t.Context(), c.runtime(), rt))
}

// A list of CNI 1.1, to ask for STATUS, which older ones have not.
func withVersion(t *testing.T, list *libcni.NetworkConfigList, version string) *libcni.NetworkConfigList {
	t.Helper()
	var doc map[string]any
	require.NoError(t, json.Unmarshal(list.Bytes, &doc))
	doc["cniVersion"] = version
	doc["plugins"] = doc["plugins"].([]any)[1:]
	data, err := json.Marshal(doc)
	require.NoError(t, err)
	out, err := libcni.ConfListFromBytes(data)
	require.NoError(t, err)
	return out
}

// Whatever is broken, the agent's own pod starts: else nothing could mend it.
func TestTheAgentsOwnPodStartsWhenAllIsBroken(t *testing.T) {
	c := newCluster(t)
	c.install()
	w := netnstest.NewWorld(t, netnstest.Options{})
	for _, tc := range []struct {
		name   string
		breaks func()
	}{ // one on top of the other
		{"the token has expired", func() { c.server.SetToken("another") }},
		{"no API server", func() { c.server.Close() }},
		{"no kubeconfig", func() { require.NoError(t, os.Remove(c.kubeconfig())) }},
		{"no run directory at all", func() { require.NoError(t, os.RemoveAll(c.RunDir)) }},
	} {
		name := tc.name
		tc.breaks()
		_, err := c.cni.AddNetworkList(t.Context(), c.runtime(), sandbox(w, "shop", "cart-0"))
		require.Error(t, err, "%s: a pod of the mesh waits", name)
		own := sandbox(w, "meshcni-system", "meshcni-node-x7k2p")
		_, err = c.cni.AddNetworkList(t.Context(), c.runtime(), own)
		require.NoError(t, err, name)
		assert.Equal(t, bypass, fate(w), name)
		require.NoError(t, c.cni.DelNetworkList(t.Context(), c.runtime(), own))
	}
}

// After an uninstall the runtime still calls DEL with the list that it has cached. The binary stays until the last one.
func TestUninstallStrandsNoPod(t *testing.T) {
	c := newCluster(t)
	c.install()
	w := netnstest.NewWorld(t, netnstest.Options{})
	rt := sandbox(w, "shop", "cart-0")
	_, err := c.cni.AddNetworkList(t.Context(), c.runtime(), rt)
	require.NoError(t, err)
	require.Equal(t, captured, fate(w))

	var agents []string // for no pod; an agent that was killed has left them
	for _, name := range []string{"settings.json", "network.json", "status.json"} {
		agents = append(agents, filepath.Join(c.RunDir, name))
		require.NoError(t, os.WriteFile(agents[len(agents)-1], []byte("{}"), 0o600))
	}
	steps := c.uninstall()
	for _, path := range agents {
		assert.NoFileExists(t, path)
	}
	require.Len(t, steps.Notes, 1)
	assert.Contains(t, steps.Notes[0], "k8s-pod-network/sandbox-cart-0/eth0")
	assert.Equal(t, primaryList, c.read(c.conf("10-calico.conflist")))
	assert.FileExists(t, c.binary())

	now := c.runtime()
	require.Len(t, now.Plugins, 1)
	cached, _, err := c.cni.GetNetworkListCachedConfig(now, rt)
	require.NoError(t, err)
	list, err := libcni.ConfListFromBytes(cached)
	require.NoError(t, err)
	require.Len(t, list.Plugins, 2)
	require.NoError(t, c.cni.DelNetworkList(t.Context(), list, rt))
	c.uninstall()
	assert.NoFileExists(t, c.binary())
}
