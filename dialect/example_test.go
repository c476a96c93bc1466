package dialect_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// A mesh of one's own is a struct of data and one function; it needs no place
// in this repository.
func Example() {
	mesh := dialect.Dialect{
		Name:   "mymesh",
		Policy: selection.Policy{ProxyContainers: []string{"mymesh-proxy"}, InjectKey: "mymesh.example/inject"},
		Build: func(in dialect.Input) (dialect.Built, error) {
			r := redirect.Default()
			r.Names.ChainPrefix = "MYMESH_"
			schema := redirect.Schema{Defaults: r, Settings: []redirect.Setting{{
				Field: "outbound.excludePorts", Source: redirect.FromAnnotation, Keys: []string{"mymesh.example/skip-ports"},
				Set: redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Outbound.ExcludePorts }, redirect.AllowRanges),
			}}}
			var b dialect.Built
			var err error
			b.Redirect, b.Origins, b.Warnings, err = schema.Build(in.Given())
			return b, err
		},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{"mymesh.example/skip-ports": "3306"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "mymesh-proxy"}}},
	}

	fmt.Println(mesh.Decide(pod, nil).Reason)
	built, err := mesh.Redirect(pod, nil, nil)
	fmt.Println(built.Redirect.Outbound.ExcludePorts, err)
	for _, o := range built.Origins {
		fmt.Println(o.Field, "from", o.Source, o.Key)
	}
	// Output:
	// selected
	// 3306 <nil>
	// outbound.excludePorts from annotation mymesh.example/skip-ports
}
