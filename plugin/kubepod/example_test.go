package kubepod_test

import (
	"context"
	"fmt"

	"github.com/meshcni/meshcni/plugin/kubepod"
)

// One pod, with one GET. Whether an error may pass by itself is for Transient
// to say.
func ExampleOpen() {
	pods, err := kubepod.Open("/var/run/meshcni/kubeconfig")
	if err != nil {
		fmt.Println(err) // a *kubepod.ConfigError
		return
	}
	defer pods.Close()
	pod, err := pods.Pod(context.Background(), "shop", "cart")
	if err != nil {
		fmt.Println(pods.Transient(err), err)
		return
	}
	fmt.Println(pod.UID)
}
