package selection_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/selection"
)

// A mesh says in data which pods it redirects, and each answer says why.
func ExamplePolicy_Decide() {
	mesh := selection.Policy{
		ExcludedNamespaces: []string{"kube-system"},
		ProxyContainers:    []string{"mesh-proxy"},
		InjectKey:          "mesh.example/inject",
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "mesh-proxy"}}},
	}
	show := func(d selection.Decision) { fmt.Printf("%t %s: %s\n", d.Selected, d.Reason, d.Detail) }

	show(mesh.Decide(pod, nil))
	pod.Labels = map[string]string{"mesh.example/inject": "false"}
	show(mesh.Decide(pod, nil))
	pod.Spec.HostNetwork = true
	show(mesh.Decide(pod, nil))
	// Output:
	// true selected: container "mesh-proxy" is there
	// false inject-disabled: label mesh.example/inject is "false"
	// false host-network: the pod uses the host's network
}
