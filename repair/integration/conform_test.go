package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/repair/internal/kube"
	"github.com/meshcni/meshcni/repair/repairtest"
)

// TestConform runs on the real server the table that repairtest runs on its
// cluster in memory, so that what unit tests rest on is true.
func TestConform(t *testing.T) {
	s := kubetest.Shared(t)
	config, err := s.Config(kubetest.AdminToken)
	require.NoError(t, err)
	client, err := kube.New(config)
	require.NoError(t, err)
	repairtest.Conform(t, client, newAdmin(t, s))
}
