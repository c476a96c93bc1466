package attachment_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/status"
)

// TestString: a record that is printed says more than its ID, and not its rules.
func TestString(t *testing.T) {
	t.Parallel()
	r := attachment.Record{
		ID:  attachment.ID{Network: "k8s", ContainerID: "c0ffee", IfName: "eth0"},
		Pod: status.ID{Namespace: "shop", Name: "web"}, Selected: true, Reason: "selected", Dialect: "istio",
	}
	assert.Equal(t, "network k8s, container c0ffee, interface eth0: pod shop/web, captured by istio", fmt.Sprint(r))
	r.Selected, r.Reason, r.Pod = false, "no-proxy", status.ID{}
	assert.Equal(t, "network k8s, container c0ffee, interface eth0: not captured: no-proxy", fmt.Sprintf("%v", r))
}
