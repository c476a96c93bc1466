package mesh_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/mesh"
)

// A namespace asks the mesh for its pods, and one pod of it does not want to be in the mesh.
func ExampleInjection_Asks() {
	injection := mesh.Injection{
		Pod:       []mesh.Wish{mesh.Annotation("acme.example/inject", []string{"yes"}, []string{"no"})},
		Namespace: []mesh.Wish{mesh.Label("acme.example/mesh", []string{"on"}, []string{"off"})},
	}
	var pod corev1.Pod
	var namespace corev1.Namespace
	namespace.Labels = map[string]string{"acme.example/mesh": "on"}
	fmt.Println(injection.Asks(&pod, &namespace).By)
	pod.Annotations = map[string]string{"acme.example/inject": "no"}
	fmt.Println(injection.Asks(&pod, &namespace).By)
	// Output:
	// its namespace has the label acme.example/mesh=on
	// the pod has the annotation acme.example/inject=no
}
