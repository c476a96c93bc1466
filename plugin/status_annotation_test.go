package plugin_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
)

// TestStatusAnnotation: the pod is written to in one request where that is configured, never twice, never another pod,
// and a failure does not stop a pod that is captured.
func TestStatusAnnotation(t *testing.T) {
	t.Parallel()
	waiting := func() *corev1.Pod {
		p := meshPod()
		p.Annotations = map[string]string{
			consul.InjectStatus: "injected", consul.TransparentProxyStatus: consul.StatusWaiting, consul.DualStack: "false",
			consul.RedirectTrafficConfig: `{"ProxyUserID": "5995", "ProxyInboundPort": 20000}`, "other": "kept",
		}
		return p
	}
	const get, patch = "GET /api/v1/namespaces/shop/pods/cart-0", "PATCH /api/v1/namespaces/shop/pods/cart-0/status"
	cases := map[string]struct {
		write    any
		before   string
		spoil    apiservertest.Hook
		requests []string
		after    string
		warns    string
	}{
		"as configured": {true, consul.StatusWaiting, nil, []string{get, patch}, "complete", ""},
		"not asked for": {nil, consul.StatusWaiting, nil, []string{get}, consul.StatusWaiting, ""},
		"there already": {true, "complete", nil, []string{get}, "complete", ""},
		"no right to": {true, consul.StatusWaiting, func(n int, w http.ResponseWriter, _ *http.Request) bool {
			if n == 2 {
				apiservertest.WriteStatus(w, http.StatusForbidden, "pods/status is forbidden")
			}
			return n == 2
		}, []string{get, patch}, consul.StatusWaiting, "status annotation: patch status of pod shop/cart-0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := apiservertest.NewAPIServer(t)
			pod := waiting()
			pod.Annotations[consul.TransparentProxyStatus] = tc.before
			server.SetPod(pod)
			if tc.spoil != nil {
				server.Handle(tc.spoil)
			}
			c := withServer(t, server)
			c.config["dialect"] = "consul"
			if tc.write != nil {
				c.config["write_status"] = tc.write
			}
			out := c.run(t)
			assert.Zero(t, out.exit, out.stdout)
			assert.NotNil(t, c.netns.Live.IPv4)
			assert.Equal(t, tc.requests, server.Requests())
			got := server.Pod("shop", "cart-0").Annotations
			assert.Equal(t, tc.after, got[consul.TransparentProxyStatus])
			assert.Equal(t, "kept", got["other"])
			if tc.warns != "" {
				assert.Contains(t, out.stderr, tc.warns)
			} else {
				assert.NotContains(t, out.stderr, "status annotation")
			}
		})
	}

	t.Run("another pod of the name", func(t *testing.T) {
		t.Parallel()
		server := apiservertest.NewAPIServer(t)
		server.SetPod(waiting())
		server.Handle(func(n int, _ http.ResponseWriter, _ *http.Request) bool {
			if n == 2 {
				other := waiting()
				other.UID = "another"
				server.SetPod(other)
			}
			return false
		})
		c := withServer(t, server)
		c.config["dialect"], c.config["write_status"] = "consul", true
		out := c.run(t)
		assert.Zero(t, out.exit, out.stdout)
		assert.Equal(t, consul.StatusWaiting, server.Pod("shop", "cart-0").Annotations[consul.TransparentProxyStatus])
		assert.Contains(t, out.stderr, "status annotation: patch status of pod shop/cart-0")
	})
}
