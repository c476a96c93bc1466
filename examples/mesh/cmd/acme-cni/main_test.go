package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

// TestAdd: the plugin gives a pod its rules, and leaves the agent's own pods alone, for which it asks nobody.
func TestAdd(t *testing.T) {
	pods := plugintest.NewPods(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: acme.Proxy}}},
	})
	for args, captured := range map[string]bool{
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart":                   true,
		"K8S_POD_NAMESPACE=acme-system;K8S_POD_NAME=acme-node-7x8k2": false,
	} {
		netns, p := &plugintest.NetNS{}, program
		p.OpenPods, p.OpenNetNS = pods.Open, netns.Open
		env := map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "eth0", "CNI_ARGS": args}
		var stdout bytes.Buffer
		code := p.Run(t.Context(), plugin.IO{
			Getenv: func(key string) string { return env[key] },
			Stdin: strings.NewReader(`{"cniVersion": "1.0.0", "name": "pods", "type": "acme-cni", "run_dir": "` + t.TempDir() + `",
				"kubernetes": {}, "pod_namespace": "acme-system", "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}]}}`),
			Stdout: &stdout,
		})
		assert.Zero(t, code, stdout.String())
		assert.Equal(t, captured, strings.Contains(netns.Live.IPv4.String(), "-j "+acme.DefaultRedirect().Names.ChainPrefix), args)
	}
}
