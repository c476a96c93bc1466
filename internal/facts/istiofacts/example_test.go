package istiofacts_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/mesh"
)

// What Istio's init container writes, as its plugin would write it.
func ExampleNew() {
	d := istio.New()
	c := corev1.Container{Name: "istio-init", Args: []string{"istio-iptables", "-b", "*", "-d", "15090,9090"}}
	r, err := istiofacts.New().Init.Read(&d, mesh.InitContainer{Pod: &corev1.Pod{}, Container: &c, Ours: istio.DefaultRedirect()})
	fmt.Println(r.Inbound.ExcludePorts, err)
	// Output: 9090,15090 <nil>
}
