package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
)

// ConfList is the path of the network's list on the node.
const ConfList = containerd.CNIConfDir + "/10-e2e.conflist"

// Primary is the network's list as its owner wrote it. A program that writes JSON anew would not keep its blanks.
const Primary = `{
  "cniVersion": "1.0.0",
  "name":  "e2e",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "mtu": 1450,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
  ]
}
`

// installNetwork puts the network's plugins and its list on the node.
func installNetwork() error {
	for _, name := range []string{"ptp", "host-local", "portmap", "loopback"} {
		from, to := filepath.Join(containerd.Plugins, name), filepath.Join(containerd.CNIBinDir, name)
		if out, err := exec.Command("cp", "--dereference", from, to).CombinedOutput(); err != nil {
			return fmt.Errorf("install plugin %s: %w: %s", name, err, out)
		}
	}
	return os.WriteFile(ConfList, []byte(Primary), 0o644)
}
