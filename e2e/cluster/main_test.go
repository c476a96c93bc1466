package cluster_test

import (
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }
