package plugintest_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/plugin/plugintest"
)

// A source of pods that fails once.
func ExampleNewPods() {
	pods := plugintest.NewPods(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "5f1c"}})
	pods.Hook = func(_ context.Context, n int) error {
		if n == 1 {
			return errors.New("connection refused")
		}
		return nil
	}
	source, err := pods.Open("kubeconfig")
	if err != nil {
		panic(err)
	}
	_, err = source.Pod(context.Background(), "shop", "cart")
	fmt.Println(err)
	pod, err := source.Pod(context.Background(), "shop", "cart")
	fmt.Println(pod.UID, err)
	fmt.Println(pods.Calls(), "requests")
	// Output:
	// connection refused
	// 5f1c <nil>
	// 2 requests
}
