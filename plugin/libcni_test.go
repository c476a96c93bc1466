//go:build linux

package plugin_test

import (
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// firstPlugin gives the test world's addresses, which are there already.
const firstPlugin = `#!/bin/sh
case "$CNI_COMMAND" in
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"10.244.1.5/24","interface":1},{"address":"fd00:10:244::5/64","interface":1}]}' ;;
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
esac
`

// TestChainedUnderTheRuntimeLibrary has libcni run the built program after another plugin, as containerd and CRI-O do.
func TestChainedUnderTheRuntimeLibrary(t *testing.T) {
	n := newNode(t, "auto")
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "first"), []byte(firstPlugin), 0o755))
	require.NoError(t, os.Symlink(n.binary, filepath.Join(bin, "meshcni")))
	list, err := json.Marshal(object{
		"cniVersion": "1.1.0", "name": "pod-network",
		"plugins": []object{{"type": "first"}, {
			"type": "meshcni", "run_dir": n.runDir, "kubernetes": object{"kubeconfig": n.kubeconfig},
			"capabilities": object{netconf.AnnotationsCapability: true},
		}},
	})
	require.NoError(t, err)
	conf, err := libcni.NetworkConfFromBytes(list)
	require.NoError(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})

	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		gets   int
		fate   string
	}{
		"in the mesh":      {func(*corev1.Pod) {}, 1, "proxy:15001 orig=10.96.5.5:80"},
		"not in the mesh":  {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, 0, "out:80 orig=10.96.5.5:80"},
		"another mesh pod": {func(p *corev1.Pod) { p.Name = "cart-1" }, 1, "proxy:15001 orig=10.96.5.5:80"},
	} {
		t.Run(name, func(t *testing.T) {
			w := netnstest.NewWorld(t, netnstest.Options{})
			pod := meshPod()
			tc.change(pod)
			n.server.SetPod(pod)
			before := len(n.server.Requests())
			rt := &libcni.RuntimeConf{
				ContainerID: "sandbox-" + pod.Name, NetNS: w.Pod.Path(), IfName: "eth0",
				Args: [][2]string{
					{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name},
					{"K8S_POD_INFRA_CONTAINER_ID", "sandbox-" + pod.Name}, {"K8S_POD_UID", string(pod.UID)},
				},
				CapabilityArgs: map[string]any{netconf.AnnotationsCapability: pod.Annotations},
			}
			require.NoError(t, cni.GetStatusNetworkList(t.Context(), conf))
			_, err := cni.ValidateNetworkList(t.Context(), conf)
			require.NoError(t, err)
			result, err := cni.AddNetworkList(t.Context(), conf, rt)
			require.NoError(t, err)
			r, err := types100.GetResult(result)
			require.NoError(t, err)
			require.Len(t, r.IPs, 2)
			assert.Equal(t, "10.244.1.5/24", r.IPs[0].Address.String())
			assert.Len(t, n.server.Requests(), before+tc.gets)

			probe := netnstest.Probe{From: "pod", Proto: "tcp", UID: 1000, GID: 1000, Dst: netip.MustParseAddrPort("10.96.5.5:80")}
			assert.Equal(t, tc.fate, w.Run([]netnstest.Probe{probe})[probe.String()])
			require.NoError(t, cni.CheckNetworkList(t.Context(), conf, rt))
			require.NoError(t, cni.GCNetworkList(t.Context(), conf, nil))
			require.NoError(t, cni.DelNetworkList(t.Context(), conf, rt))
			require.NoError(t, cni.DelNetworkList(t.Context(), conf, rt))
		})
	}
	t.Run("the log", func(t *testing.T) {
		path := filepath.Join(n.runDir, "plugin.log")
		st, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), st.Mode())
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, 6, strings.Count(string(text), `"msg":"decision"`), "an ADD and a CHECK of three pods")
	})
	t.Run("an error reaches the runtime", func(t *testing.T) {
		rt := &libcni.RuntimeConf{ContainerID: "x", NetNS: netnstest.New(t).Path(), IfName: "eth0", Args: [][2]string{{"K8S_POD_NAME", ".."}}}
		_, err := cni.AddNetworkList(t.Context(), conf, rt)
		assert.ErrorContains(t, err, "K8S_POD_NAME")
	})
}
