package cluster_test

import (
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/cluster"
)

func TestBoot(t *testing.T) {
	c := cluster.Shared(t)
	c.ExplainFailure(t)
	s := newShop(t, c, "boot")
	s.create(t, pod{name: "cart"}, pod{name: "client", outside: true})
	s.ready(t, "cart", "client")
	s.assertUncaptured(t, "cart", "client")
}
