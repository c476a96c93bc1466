package cluster_test

import (
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
)

func TestMain(m *testing.M) {
	o := onenode.Machine(onenode.Containerd)
	o.Build, o.Failed = image.Build, keepLogs
	machine.Main(m, o)
}
