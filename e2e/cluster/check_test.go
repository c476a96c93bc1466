package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// finding is what "kubectl meshcni check -o json" says.
type finding struct {
	Code, Level, Text, Remedy string
	Where                     []string
}

// check returns the findings, each as its code and where it is.
func (c *cluster) check(t *testing.T) (code int, all []string) {
	t.Helper()
	code, out, errs := c.meshcni(t, "check", "-o", "json")
	var r struct{ Findings []finding }
	require.NoError(t, json.Unmarshal([]byte(out), &r), out+errs)
	for _, f := range r.Findings {
		assert.NotEmpty(t, f.Remedy, f.Code)
		all = append(all, fmt.Sprintf("%s %s (%s) %s", f.Level, f.Code, strings.Join(f.Where, " "), f.Text))
	}
	return code, all
}

// istioWebhook is a configuration of Istio's injector, whose service nobody answers for, for a namespace.
const istioWebhook = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-sidecar-injector}
webhooks:
  - name: namespace.sidecar-injector.istio.io
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    timeoutSeconds: 1
    clientConfig: {service: {namespace: istio-system, name: istiod, path: /inject}}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-public}}
`

// TestCheck: of a sound installation nothing is said, whatever its mode; a right that is taken away and an injector that takes what the
// plugin leaves alone are found.
func TestCheck(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "check")
	install(t, c, "--set", "excludeNamespaces={kube-system,kube-public}", "--set", "repair.mode=repair")
	s.create(t, pod{name: "cart"})
	s.ready(t, "cart")

	step(t, c, "a sound installation", func(t *testing.T) {
		eventually(t, soon, "nothing is wrong", func() error {
			if code, all := c.check(t); code != 0 || len(all) > 0 {
				return errors.New(strings.Join(all, "\n"))
			}
			return nil
		})
	})
	step(t, c, "a right is missing", func(t *testing.T) {
		role := c.Run(t, "kubectl", "get", "clusterrole", "meshcni-plugin", "-o", "json")
		var object map[string]any
		require.NoError(t, json.Unmarshal([]byte(role), &object))
		delete(object["metadata"].(map[string]any), "resourceVersion")
		before, err := json.Marshal(object)
		require.NoError(t, err)
		c.Run(t, "kubectl", "patch", "clusterrole", "meshcni-plugin", "--type=json", "-p", `[{"op":"replace","path":"/rules","value":[]}]`)
		t.Cleanup(func() { c.Apply(t, string(before)) })
		eventually(t, soon, "it is found", func() error { // the authorizer hears of it in a moment
			code, all := c.check(t)
			want := "error agent-rights (system:serviceaccount:" + system + ":meshcni-plugin) may not get pods: without it no pod of the mesh starts"
			if code != 1 || len(all) != 1 || all[0] != want {
				return errors.New(strings.Join(all, "\n"))
			}
			return nil
		})
	})
	step(t, c, "an injector for a namespace that is left alone", func(t *testing.T) {
		c.Apply(t, istioWebhook)
		t.Cleanup(func() { c.Run(t, "kubectl", "delete", "mutatingwebhookconfiguration", "istio-sidecar-injector") })
		eventually(t, soon, "both are found", func() error {
			code, all := c.check(t)
			text := strings.Join(all, "\n")
			if code != 1 || len(all) != 2 || !strings.Contains(text, "error injector-excluded (namespace/kube-public) ") ||
				!strings.Contains(text, "error injector-down (webhook/istio-sidecar-injector/namespace.sidecar-injector.istio.io) ") {
				return errors.New(text)
			}
			return nil
		})
	})
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	uninstall(t, c)
	assertClean(t, c)
}
