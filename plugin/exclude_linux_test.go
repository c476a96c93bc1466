package plugin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestExcludedByLabel runs the built program where namespaces are excluded by their labels: it asks for a namespace only when
// the pod depends on it, and a pod whose namespace it cannot read does not start uncaptured.
func TestExcludedByLabel(t *testing.T) {
	n := newNode(t, "iptables-nft")
	pod := caseOf(t, "fam-dual")
	namespace := "/api/v1/namespaces/" + pod.Namespace
	label := func(value string) {
		n.server.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Labels: map[string]string{"team": value}}})
	}
	forbid := func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == namespace {
			apiservertest.WriteStatus(w, http.StatusForbidden, "namespaces is forbidden")
		}
		return r.URL.Path == namespace
	}
	for name, c := range map[string]struct {
		selector, team string
		hook           apiservertest.Hook
		code           int // of the failure
		captured       bool
		asks           int // for the namespace
	}{
		"a label that matches":    {selector: "team in (data,ml)", team: "ml", asks: 1},
		"one that does not":       {selector: "team in (data,ml)", team: "web", captured: true, asks: 1},
		"an absence that matches": {selector: "!mesh,team", team: "web", asks: 1},
		"no selector":             {team: "ml", captured: true},
		"no right to namespaces":  {selector: "team=ml", team: "ml", hook: forbid, code: 11},
		"a selector that is none": {selector: "team in ml", team: "ml", code: 7},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			label(c.team)
			n.server.Handle(c.hook)
			a := n.attach(pod, ns)
			a.Config.(object)["add_deadline"] = "1s"
			if c.selector != "" {
				a.Config.(object)["kubernetes"].(object)["exclude_namespace_selector"] = c.selector
			}
			before := len(n.server.Requests())
			out := a.Run(t, "ADD")
			asked := 0
			for _, r := range n.server.Requests()[before:] {
				if r == "GET "+namespace {
					asked++
				}
			}
			if c.hook == nil { // it asks until the deadline
				assert.Equal(t, c.asks, asked)
			}
			if c.code != 0 {
				code, message := out.Failure()
				assert.Equal(t, c.code, code, message)
			} else {
				require.Zero(t, out.Exit, out.Stdout)
			}
			assert.Equal(t, c.captured, strings.Contains(rules(t, ns), "ISTIO_OUTPUT"))
			assert.Zero(t, a.Run(t, "DEL").Exit)
		})
	}
}
