package plugintest_test

import (
	"context"
	"fmt"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/plugin/kubepod"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

// A server with one pod, which fails once; in a test, NewAPIServer and
// t.TempDir do away with half of the lines.
func ExampleStartAPIServer() {
	server, err := plugintest.StartAPIServer()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "5f1c"}})
	server.Handle(plugintest.First(1, plugintest.Answer(http.StatusServiceUnavailable)))

	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	kubeconfig, err := server.WriteKubeconfig(dir)
	if err != nil {
		panic(err)
	}
	pods, err := kubepod.Open(kubeconfig)
	if err != nil {
		panic(err)
	}
	defer pods.Close()
	_, err = pods.Pod(context.Background(), "shop", "cart")
	fmt.Println("transient:", kubepod.Transient(err))
	pod, err := pods.Pod(context.Background(), "shop", "cart")
	fmt.Println(pod.UID, err)
	fmt.Println(len(server.Requests()), "requests")
	// Output:
	// transient: true
	// 5f1c <nil>
	// 2 requests
}
