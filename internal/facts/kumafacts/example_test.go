package kumafacts_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/facts/kumafacts"
)

// Kuma's label has words beside true and false.
func ExampleNew() {
	var pod corev1.Pod
	pod.Labels = map[string]string{"kuma.io/sidecar-injection": "yes"}
	fmt.Println(kumafacts.New().Injection.Asks(&pod, nil).Answer)
	// Output: yes
}
