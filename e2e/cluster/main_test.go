package cluster_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

// The addresses of the node and of Service "kubernetes". Both are on the node's lo.
const (
	nodeIP    = "10.89.0.1"
	serviceIP = "10.77.0.1"
)

func TestMain(m *testing.M) {
	empty, memory := containerd.Dirs()
	machine.Main(m, machine.Options{
		Needs: []netnstest.Need{
			kubetest.Servers,
			kubetest.Components("kube-controller-manager", "kube-scheduler", "kubelet"),
			containerd.Need,
			netnstest.Needing("helm (run .ci/tool helm) and kubectl (run .ci/kube kubectl)", func() error {
				_, errHelm := program("helm")
				_, errKubectl := program("kubectl")
				return errors.Join(errHelm, errKubectl)
			}),
		},
		Build:     image.Build,
		Addresses: []netip.Addr{netip.MustParseAddr(nodeIP), netip.MustParseAddr(serviceIP)},
		Empty:     empty,
		Memory:    append(memory, "/var/lib/kubelet"),
		Failed:    keepLogs,
	})
}

// program finds one of the repository's tools, or else of the machine's. kubectl is best of the cluster's own version.
func program(name string) (string, error) {
	if path, err := exec.LookPath(proctest.Cache("bin", name)); err == nil {
		return path, nil
	}
	if path, err := kubetest.Component(name); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is neither in %s nor on the PATH", name, proctest.Cache("bin"))
}
