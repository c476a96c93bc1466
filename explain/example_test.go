package explain_test

import (
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/mesh"
)

// A program of your own explains a pod of your mesh, here Istio.
func ExamplePod() {
	m, err := explain.ParseManifest([]byte(`
metadata: {name: cart-0, namespace: shop, annotations: {sidecar.istio.io/status: "{}"}}
spec: {containers: [{name: app}, {name: istio-proxy}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := explain.Pod(dialect.SetOf(istio.New()), explain.Input{Subject: dialect.Subject{Pod: m.Pod}, Facts: mesh.List{istiofacts.New()}, Template: m.Template})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := x.Verdict.WriteTo(os.Stdout); err != nil { // x.WriteTo has the settings and the rules too
		fmt.Println(err)
	}
	// Output:
	// The plugin captures this pod: its connections go through Istio (sidecar), though some may get past it.
	//   past the mesh: ipv6 bypasses the mesh if the pod's kernel has it, which is not known here: the family is not captured
	//     to close it: Capture it (Istio: ISTIO_DUAL_STACK=true on the proxy), or set uncapturedFamily: drop.
}

// A controller of your own reports what becomes of a pod by its settings, as the agents report what has become of it.
func ExampleExplanation_Status() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "7d1c"}, Spec: corev1.PodSpec{HostNetwork: true}}
	x, err := explain.Pod(dialect.SetOf(istio.New()), explain.Input{Subject: dialect.Subject{Pod: pod}, Facts: mesh.List{istiofacts.New()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := x.Status()
	fmt.Println(p.Namespace, p.Name, p.UID, p.State, p.Reason, p.NeedsAttention())
	// Output: shop cart-0 7d1c outside host-network false
}

// What the mesh would refuse, before it is in a cluster.
func ExampleCheckManifests() {
	const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata:
      annotations:
        traffic.sidecar.istio.io/excludeOutboundPorts: "5432-5440"
    spec: {containers: [{name: web, securityContext: {runAsUser: 1000}}]}
`
	report := explain.CheckManifests(dialect.SetOf(istio.New()), explain.ManifestCheck{
		Files:      map[string][]byte{"web.yaml": []byte(web)},
		AsInjected: true,
	})
	for _, f := range report.Failing("refused", "bypass", "outside") {
		fmt.Println(f)
	}
	// Output:
	// web.yaml:9: Deployment shop/web: refused: annotation traffic.sidecar.istio.io/excludeOutboundPorts="5432-5440": "5432-5440" is not a port from 0 to 65535 (allowed: "*", or ports from 0 to 65535 separated by commas)
}
