package cluster_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// step is a part of a test whose failure is explained while there is something to see.
func step(t *testing.T, c *cluster, name string, do func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		c.ExplainFailure(t)
		do(t)
	})
}

// mesh is what a mesh's injector puts into a pod, and where its proxy listens.
type mesh struct {
	dialect, container string
	uid, out, in       int
	annotations        map[string]string
}

var istio = mesh{"istio", "istio-proxy", 1337, 15001, 15006, map[string]string{"sidecar.istio.io/status": `{"containers":["istio-proxy"]}`}}

// shop is a namespace with pods, as its user sees it.
type shop struct {
	*cluster
	namespace string
	mesh      mesh
}

// newShop makes a namespace for one test.
func newShop(t *testing.T, c *cluster, namespace string) shop {
	t.Helper()
	s := shop{c, namespace, istio}
	// Another test's of that name may be on its way out.
	c.Run(t, "kubectl", "delete", "namespace", namespace, "--ignore-not-found", "--timeout="+netnstest.Patience.String())
	c.Run(t, "kubectl", "create", "namespace", namespace)
	// A pod is admitted once its service account is there.
	s.kubectl(t, "wait", "--for=create", "serviceaccount/default", "--timeout=5m")
	t.Cleanup(func() { c.Run(t, "kubectl", "delete", "namespace", namespace, "--wait=false") })
	c.ExplainFailure(t)
	return s
}

func (s shop) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return s.Run(t, "kubectl", append([]string{"--namespace", s.namespace}, args...)...)
}

// pod is a manifest to be.
type pod struct {
	name        string
	annotations map[string]string
	// outside is a pod without proxy.
	outside bool
	// validated has an init container that fails unless redirection works, as the injector puts it in.
	validated bool
	// appUID is the application's user; 0 is 1000.
	appUID int
	// replicas is how many a Deployment has; 0 is 1.
	replicas int
}

// template is the pod's labels, annotations and containers, as the mesh's injector leaves them. The application serves 8080
// and 9090. Without the probes a pod would be ready before its containers listen.
func (p pod) template(m mesh) string {
	var b strings.Builder
	fmt.Fprintf(&b, "metadata:\n  name: %[1]s\n  labels: {app: %[1]s}\n  annotations:\n    e2e: \"true\"\n", p.name)
	if p.outside {
		m.annotations = nil
	}
	for _, annotations := range []map[string]string{m.annotations, p.annotations} {
		for k, v := range annotations {
			fmt.Fprintf(&b, "    %s: %q\n", k, v)
		}
	}
	b.WriteString("spec:\n  terminationGracePeriodSeconds: 1\n")
	if p.validated {
		fmt.Fprintf(&b, `  initContainers:
  - name: istio-validation
    image: %s
    command: [meshcni-redirect, validate]
    securityContext: {runAsUser: 1337, runAsGroup: 1337, capabilities: {drop: [ALL]}}
`, chartImage)
	}
	fmt.Fprintf(&b, `  containers:
  - name: app
    image: %[1]s
    args: [serve, "8080", "9090"]
    securityContext: {runAsUser: %[2]d}
    readinessProbe: {tcpSocket: {port: 9090}, periodSeconds: 1}
`, image.Tool, cmp.Or(p.appUID, 1000))
	if !p.outside {
		fmt.Fprintf(&b, `  - name: %s
    image: %s
    args: [serve, "%d", "%d"]
    securityContext: {runAsUser: %[5]d, runAsGroup: %[5]d}
    readinessProbe: {tcpSocket: {port: %[4]d}, periodSeconds: 1}
`, m.container, image.Tool, m.out, m.in, m.uid)
	}
	return b.String()
}

// create creates pods and waits for none.
func (s shop) create(t *testing.T, pods ...pod) {
	t.Helper()
	var b strings.Builder
	for _, p := range pods {
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\n%s---\n", strings.Replace(p.template(s.mesh), "metadata:\n", "metadata:\n  namespace: "+s.namespace+"\n", 1))
	}
	s.Apply(t, b.String())
}

// ready waits until pods are.
func (s shop) ready(t *testing.T, names ...string) {
	t.Helper()
	args := []string{"wait", "--for=condition=Ready", "--timeout=5m"}
	for _, n := range names {
		args = append(args, "pod/"+n)
	}
	s.kubectl(t, args...)
}

// ip is a pod's address.
func (s shop) ip(t *testing.T, name string) string {
	t.Helper()
	return s.kubectl(t, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
}

// dial connects from the application of a pod, and returns at which port the answer was made, and to what address the
// connection was: "15001 for 10.88.7.5:8080".
func (s shop) dial(t *testing.T, from, address string) string {
	t.Helper()
	answer := s.kubectl(t, "exec", from, "-c", "app", "--", image.ToolPath, "probe", "tcp:"+address)
	who, rest, _ := strings.Cut(answer, " orig=")
	orig, _, _ := strings.Cut(rest, " ")
	return strings.TrimPrefix(who, "app:") + " for " + orig
}

// assertCaptured shows with packets that a pod's connections go through its proxy, out and in. The client is a pod outside
// the mesh.
func (s shop) assertCaptured(t *testing.T, name, client string) {
	t.Helper()
	ip, other := s.ip(t, name), s.ip(t, client)
	assert.Equal(t, fmt.Sprintf("%d for %s:8080", s.mesh.out, other), s.dial(t, name, other+":8080"), "out of %s", name)
	assert.Equal(t, fmt.Sprintf("%d for %s:8080", s.mesh.in, ip), s.dial(t, client, ip+":8080"), "into %s", name)
}

// assertUncaptured shows the opposite.
func (s shop) assertUncaptured(t *testing.T, name, client string) {
	t.Helper()
	ip, other := s.ip(t, name), s.ip(t, client)
	assert.Equal(t, "8080 for "+other+":8080", s.dial(t, name, other+":8080"), "out of %s", name)
	assert.Equal(t, "8080 for "+ip+":8080", s.dial(t, client, ip+":8080"), "into %s", name)
}

// event waits until an object has an event for a reason, and returns its message.
func (s shop) event(t *testing.T, object, reason string) (message string) {
	t.Helper()
	eventually(t, soon, "event "+reason+" of "+object, func() error {
		message = s.kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+object+",reason="+reason, "-o", "jsonpath={.items[*].message}")
		if message == "" {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	return message
}

const (
	system  = "meshcni-system"
	release = "meshcni"
	chart   = "deploy/helm/meshcni"
)

// located says to the chart that the image was imported on the node.
var located = []string{"--set", "image.registry=" + image.Registry}

// install installs the chart as the README says, and takes it away when the test ends. It returns how long the API server's
// audit log is then.
func install(t *testing.T, c *cluster, values ...string) (audited int) {
	t.Helper()
	audited = len(c.Server.Audit(t))
	c.Run(t, "kubectl", "--namespace", system, "delete", "events", "--all") // an earlier test's
	t.Cleanup(func() {
		_, _ = c.Try("helm", "uninstall", release, "--namespace", system, "--wait", "--ignore-not-found")
	})
	c.Run(t, "helm", slices.Concat([]string{"install", release, chart, "--namespace", system, "--create-namespace"}, located, values)...)
	rolledOut(t, c)
	return audited
}

// upgrade changes values of the release.
func upgrade(t *testing.T, c *cluster, values ...string) {
	t.Helper()
	c.Run(t, "helm", slices.Concat([]string{"upgrade", release, chart, "--namespace", system}, located, values)...)
	rolledOut(t, c)
}

func rolledOut(t *testing.T, c *cluster) {
	t.Helper()
	c.Run(t, "kubectl", "--namespace", system, "rollout", "status", "daemonset/meshcni-node", "--timeout=5m")
	eventually(t, soon, "the old agent, which stays until the new one is ready, is gone", func() error {
		nodes := c.Run(t, "kubectl", "get", "nodes", "-o", "name")
		if agents := c.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/component=node", "-o", "name"); len(strings.Fields(agents)) != len(strings.Fields(nodes)) {
			return errors.New(agents)
		}
		return nil
	})
}

// leave deletes the pods, takes the release away, and holds the node to what it was before, also where the agent was replaced and is
// itself a pod that was attached with the plugin.
func (s shop) leave(t *testing.T) {
	t.Helper()
	s.kubectl(t, "delete", "deployments,pods", "--all", "--timeout=5m")
	uninstall(t, s.cluster)
	assert.Empty(t, s.Changes(t))
}

// uninstall takes the release away, and returns what helm has said.
func uninstall(t *testing.T, c *cluster) (said string) {
	t.Helper()
	said, err := c.Try("helm", "uninstall", release, "--namespace", system, "--wait")
	require.NoError(t, err, said)
	assert.Empty(t, c.Run(t, "kubectl", "get", "daemonsets,jobs,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings",
		"-A", "-l", "app.kubernetes.io/instance="+release, "-o", "name"), "what the release or its removal made")
	c.Run(t, "kubectl", "--namespace", system, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=meshcni", "--timeout=5m")
	return said
}

// agentLog is what the agent's running pods have logged.
func agentLog(t *testing.T, c *cluster) string {
	t.Helper()
	return c.Run(t, "kubectl", "--namespace", system, "logs", "daemonset/meshcni-node", "--tail=-1")
}
