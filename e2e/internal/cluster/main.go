package cluster

import (
	"net/netip"
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/machine"
)

const (
	// nodeIP is the node's address, and serviceIP that of Service "kubernetes"; both are on the node's lo.
	nodeIP    = "10.89.0.1"
	serviceIP = "10.77.0.1"
)

// Main runs the tests of m on a machine that is to be the node. It is what a TestMain does, and does not return.
func Main(m *testing.M) {
	empty, memory := containerd.Dirs()
	machine.Main(m, machine.Options{
		Needs:     needs,
		Build:     build,
		Addresses: []netip.Addr{netip.MustParseAddr(nodeIP), netip.MustParseAddr(serviceIP)},
		Empty:     empty,
		Memory:    append(memory, "/var/lib/kubelet"),
		Failed:    keepLogs,
	})
}
