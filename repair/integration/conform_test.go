package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/repairtest"
)

// TestConform runs on the real server the table that repairtest runs on its
// cluster in memory, so that what unit tests rest on is true.
func TestConform(t *testing.T) {
	s := kubetest.Shared(t)
	config, err := s.Config(kubetest.AdminToken)
	require.NoError(t, err)
	kube, err := repair.NewKube(config)
	require.NoError(t, err)
	source := func(node string) cache.ListerWatcher { return kube.Pods(node, "") }
	repairtest.Conform(t, kube, source, newAdmin(t, s))
}
