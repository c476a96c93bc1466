package plugin_test

import (
	"context"
	"fmt"
	"github.com/meshcni/meshcni/dialect/builtin"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

// What the plugin does to a pod, without a cluster, root or a process.
func ExamplePlugin_Run() {
	pods := plugintest.NewPods(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
	})
	netns := &plugintest.NetNS{}
	p := plugin.Plugin{Dialects: builtin.All(), OpenPods: pods.Open, OpenNetNS: netns.Open}
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "eth0",
		"CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0",
	}
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	code := p.Run(context.Background(), plugin.IO{
		Getenv: func(key string) string { return env[key] },
		Stdin: strings.NewReader(`{"cniVersion": "1.0.0", "name": "pods", "type": "meshcni", "run_dir": "` + dir + `",
			"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}]}}`),
		Stdout: os.Stdout,
	})
	fmt.Println("exit code", code, "requests", pods.Calls())
	for line := range strings.Lines(netns.Live.IPv4.String()) {
		if strings.HasPrefix(line, "-A ISTIO_IN_REDIRECT") {
			fmt.Print(line)
		}
	}
	// Output:
	// {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}]}
	// exit code 0 requests 1
	// -A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
}
