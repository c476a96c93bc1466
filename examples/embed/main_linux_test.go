package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// One ADD by the plugin's own code, and where the pod's packets then go.
func TestAdd(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{ProxyUID: 2102, ProxyGID: 2102, ProxyTCP: []uint16{4140, 4143}, ProxyUDP: []uint16{}})
	pod, err := json.Marshal(corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{"config.linkerd.io/skip-outbound-ports": "3306"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "linkerd-proxy"}}},
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "pod.json")
	require.NoError(t, os.WriteFile(file, pod, 0o600))
	inherits := filepath.Join(t.TempDir(), "namespace.json")
	require.NoError(t, os.WriteFile(inherits, []byte(`{"metadata": {"name": "shop", "annotations": {"config.linkerd.io/skip-inbound-ports": "9090"}}}`), 0o600))
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: w.Pod.Path(), IfName: "eth0",
		Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart;POD_FILE=" + file,
		StdinData: []byte(`{"cniVersion": "1.0.0", "name": "pods", "type": "embed",
			"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}, {"address": "fd00:10:244::5/64"}]}}`),
	}
	require.ErrorContains(t, add(args), "read namespace", "nothing is taken for a namespace without settings")
	args.Args += ";NAMESPACE_FILE=" + inherits
	require.NoError(t, add(args))
	for name, want := range map[string]string{
		"pod tcp 1000/1000 -> 10.96.5.5:80":    "proxy:4140 orig=10.96.5.5:80",
		"pod tcp 1000/1000 -> 172.16.3.3:3306": "out:3306 orig=172.16.3.3:3306",
		"out tcp 0/0 -> [fd00:10:244::5]:8080": "proxy:4143 orig=[fd00:10:244::5]:8080",
		"out tcp 0/0 -> 10.244.1.5:9090":       "app:9090 orig=10.244.1.5:9090", // by its namespace
	} {
		probe, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		assert.Equal(t, want, w.Run([]netnstest.Probe{probe})[name], name)
	}
	args.Netns = "/proc/self/ns/net"
	assert.Error(t, add(args), "the host's namespace is refused")
}
