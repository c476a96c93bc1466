package repairtest_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/repairtest"
)

// A cluster in memory is a repair.Cluster: what acts on pods acts on it.
func ExampleNew() {
	cluster := repairtest.New()
	cluster.Set(repairtest.Pod("shop", "cart", "node-1", corev1.PodPending))

	var acts repair.Cluster = cluster
	pod, err := acts.Pod(context.Background(), "shop", "cart")
	fmt.Println(pod.Spec.NodeName, pod.Status.Phase, err)
	_, err = acts.Pod(context.Background(), "shop", "basket")
	fmt.Println(err)
	// Output:
	// node-1 Pending <nil>
	// pods "basket" not found
}
