package live_test

import (
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/live"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// A dashboard of your own says what is wrong with a pod. Here the agent has told that the plugin was not there when the pod started.
func ExamplePod_Now() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.5"}}},
	}
	meshes := dialect.SetOf(istio.New())
	x, err := explain.Pod(meshes, explain.Input{Subject: dialect.Subject{Pod: pod, Addrs: explain.Addrs(pod)}, Facts: mesh.List{istiofacts.New()}, Online: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := live.Pod{
		Pod: pod, Explained: x, Meshes: meshes,
		OnNode: live.OnNode{Node: "a", Pod: agentapi.Pod{State: &status.Pod{State: status.StateFailed, Reason: status.CodeNotCalled}}},
	}.Now()
	fmt.Println(now.Code, now.Health == live.Wrong)
	if err := now.WriteWith(os.Stdout, x.Verdict); err != nil {
		fmt.Println(err)
	}
	// Output:
	// bypassing true
	// This pod bypasses the mesh: it started before the plugin was on its node, or while its entry was gone.
	// What to do:
	//   - Delete it and create it again from its manifest, since nothing replaces it: kubectl --namespace shop delete pod cart-0
	//
	// By its settings: The plugin captures this pod: its connections go through Istio (sidecar), though some may get past it.
}
