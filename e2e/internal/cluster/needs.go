package cluster

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

// needs are what the cluster is made of.
var needs = []netnstest.Need{
	kubetest.Servers,
	kubetest.Components("kube-controller-manager", "kube-scheduler", "kubelet"),
	containerd.Need,
	netnstest.Needing("helm (run .ci/tool helm) and kubectl (run .ci/kube kubectl)", func() error {
		_, errHelm := program("helm")
		_, errKubectl := program("kubectl")
		return errors.Join(errHelm, errKubectl)
	}),
}

// program finds one of the repository's tools, or else of the machine's. kubectl is best of the cluster's own version.
func program(name string) (string, error) {
	if path, err := exec.LookPath(machine.Cache("bin", name)); err == nil {
		return path, nil
	}
	if path, err := kubetest.Component(name); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is neither in %s nor on the PATH", name, machine.Cache("bin"))
}
