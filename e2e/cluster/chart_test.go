package cluster_test

import (
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/cluster"
)

func TestBoot(t *testing.T) {
	c := cluster.Shared(t)
	t.Log(c.Run(t, "kubectl", "get", "all,node", "-A", "-o", "wide"))
}
