package dialect_test

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// A mesh's dialect: which pods, how they are configured, and defaults.
func ExampleDialect() {
	defaults := redirect.Default()
	defaults.Proxy.UIDs = []uint32{7777}
	schema := redirect.Schema{Defaults: defaults, Settings: []redirect.Setting{{
		Field: "outbound.excludePorts", Source: redirect.FromAnnotation, Keys: []string{"mesh.example/direct-ports"},
		Grammar: redirect.Grammar{Ranges: true},
		Allowed: "ports and ranges",
	}}}
	mesh := dialect.Dialect{
		Name:   "example",
		Policy: selection.Policy{ProxyContainers: []string{"mesh-proxy"}},
		Build:  dialect.FromSchema(schema),
		Names:  defaults.Names,
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{"mesh.example/direct-ports": "5432"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "mesh-proxy"}}},
	}
	fmt.Println(mesh.Decide(pod, nil).Reason)
	built, err := mesh.Redirect(pod, nil, nil)
	fmt.Println(built.Redirect.Outbound.ExcludePorts, err)

	pod.Annotations["mesh.example/direct-ports"] = "postgres"
	_, err = mesh.Redirect(pod, nil, nil)
	fmt.Println(err)
	// Output:
	// selected
	// 5432 <nil>
	// example configuration of pod shop/cart: annotation mesh.example/direct-ports="postgres": "postgres" is not a port from 0 to 65535 (allowed: ports and ranges)
}

// A mesh reads its own settings, which stand under its name in the plugin's configuration.
func ExampleConfigure() {
	acme := dialect.Dialect{Name: "acme", Configure: func(d dialect.Dialect, settings json.RawMessage) (dialect.Dialect, []string, error) {
		var s struct{ Containers []string }
		if err := json.Unmarshal(settings, &s); err != nil {
			return d, nil, &dialect.KeyError{Key: "acme", Err: err}
		}
		d.Policy.ProxyContainers = s.Containers
		return d, nil, nil
	}}
	config, _, _ := netconf.Parse([]byte(`{"type": "acme-cni", "dialect": "acme", "acme": {"containers": ["acme-proxy"]}}`), meshcni.Identity{})
	meshes, err := dialect.Configure([]dialect.Dialect{acme}, config)
	fmt.Println(meshes.Lookup("acme").Policy.ProxyContainers, err)

	config.Meshes["acme"] = []byte(`{"containers": 1}`)
	_, err = dialect.Configure([]dialect.Dialect{acme}, config)
	fmt.Println(err)
	// Output:
	// [acme-proxy] <nil>
	// acme: json: cannot unmarshal number into Go struct field .Containers of type []string
}

// Of several meshes on a node, the first that selects a pod has it.
func ExampleSet() {
	node, err := dialect.Configure(builtin.All(), netconf.Config{
		Dialects: []string{"ambient", "istio"}, Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}},
	})
	if err != nil {
		panic(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
	}
	plan, err := node.Plan(dialect.Subject{Pod: pod})
	if err != nil {
		panic(err)
	}
	fmt.Println(plan.Dialect)
	for _, a := range plan.Answers {
		fmt.Printf("%s: %s\n", a.Dialect, a.Reason)
	}
	// Output:
	// istio
	// ambient: has-sidecar
	// istio: selected
}

// A pod's own check tries what the mesh's rules send to the proxy. [validate.Run] takes the options, and the init container exits with
// the mesh's code if rules are missing.
func ExampleCheck() {
	mesh := istio.New()
	built, err := mesh.Redirect(&corev1.Pod{}, nil, nil)
	if err != nil {
		panic(err)
	}
	options := validate.Options{Redirect: built.Redirect, ProbePort: mesh.Check.ProbePort}
	fmt.Println(options.ProbePort, options.Redirect.Proxy.OutboundPort)
	fmt.Println(mesh.Check.Container, mesh.Check.ExitCode)
	// Output:
	// 15002 15001
	// istio-validation 126
}
