package istio_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/istio"
)

// From a pod to its rules, without a cluster or a kernel.
func ExampleNew() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{
			istio.StatusAnnotation:    "{}",
			istio.ExcludeInboundPorts: "22",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "istio-proxy"}}},
	}
	mesh := istio.New("kube-system")

	fmt.Println(mesh.Decide(pod, nil).Reason)
	built, err := mesh.Redirect(pod, nil, nil)
	fmt.Println(built.Redirect, err)

	pod.Annotations[istio.ExcludeInboundPorts] = "22,ssh"
	_, err = mesh.Redirect(pod, nil, nil)
	fmt.Println(err)
	// Output:
	// selected
	// REDIRECT in * -> :15006 except 22,15020,15021,15090; out * -> :15001 except ports 15020; proxy uid [1337] gid [1337]; ipv4 capture ipv6 pass <nil>
	// istio configuration of pod shop/cart: annotation traffic.sidecar.istio.io/excludeInboundPorts="22,ssh": "ssh" is not a port from 0 to 65535 (allowed: "*", or ports from 0 to 65535 separated by commas)
}
