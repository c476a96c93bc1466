package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

// One ADD, with a pod and a namespace in memory.
func TestAdd(t *testing.T) {
	pods := plugintest.NewPods(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", Annotations: map[string]string{"acme.example/skip-ports": "3306"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {Name: "acme-proxy"}}},
	})
	pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	netns := &plugintest.NetNS{}
	p := acmePlugin
	p.OpenPods, p.OpenNetNS = pods.Open, netns.Open
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "eth0",
		"CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0",
	}
	var stdout bytes.Buffer
	code := p.Run(t.Context(), plugin.IO{
		Getenv: func(key string) string { return env[key] },
		Stdin: strings.NewReader(`{"cniVersion": "1.0.0", "name": "pods", "type": "acme-cni", "run_dir": "` + t.TempDir() + `",
			"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}]}}`),
		Stdout: &stdout,
	})
	assert.Zero(t, code, stdout.String())
	assert.Contains(t, netns.Live.IPv4.String(), "-A ACME_OUTPUT -p tcp -m tcp --dport 3306 -j RETURN")
	assert.Contains(t, netns.Live.IPv4.String(), "-A ACME_IN_REDIRECT -p tcp -j REDIRECT --to-ports 7002")
}
