package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// needs are what the cluster is made of.
var needs = []netnstest.Need{
	kubetest.Servers,
	kubetest.Components("kube-controller-manager", "kube-scheduler", "kubelet"),
	netnstest.Needing("containerd", func() error { return have("containerd", "containerd-shim-runc-v2", "ctr") }),
	netnstest.Needing("helm (run .ci/tool helm)", func() error { return have("helm") }),
	netnstest.Needing("kubectl and runc", func() error { return have("kubectl", "runc") }),
	netnstest.Needing("reference CNI plugins in "+cniPlugins, func() error {
		_, err := os.Stat(filepath.Join(cniPlugins, "ptp"))
		return err
	}),
}

// cniPlugins is where Debian's package containernetworking-plugins has them.
const cniPlugins = "/usr/lib/cni"

// program finds one of the repository's tools, or else of the machine's.
func program(name string) (string, error) {
	if path, err := exec.LookPath(machine.Cache("bin", name)); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is neither in %s nor on the PATH", name, machine.Cache("bin"))
}

func have(names ...string) error {
	var errs []error
	for _, name := range names {
		_, err := program(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
