//go:build long

package cluster_test

import (
	"strings"
	"testing"
)

// TestTogether: pods and the agent come at the same time. Some pods are early and are repaired, all are captured in the end.
func TestTogether(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "together")
	s.create(t, pod{name: "client", outside: true})
	s.deploy(t, pod{name: "web", validated: true, replicas: 8})
	install(t, c, "--set", "repair.mode=repair")
	s.kubectl(t, "rollout", "status", "deployment/web", "--timeout=90s")
	s.ready(t, "client")
	for _, name := range strings.Fields(s.kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}")) {
		s.assertCaptured(t, name, "client")
	}
	s.leave(t)
}
