package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// socket is containerd's, where clients expect it.
const socket = "/run/containerd/containerd.sock"

// containerdConfig is containerd's own default configuration but for what a machine like CI's lacks, and the image of
// the sandboxes, which no registry has.
const containerdConfig = `version = 2
[grpc]
  address = "` + socket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + toolImage + `"
  disable_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + binDir + `"
    conf_dir = "` + confDir + `"
`

// primary is the network's list, as its owner wrote it. The blanks are what a program that writes JSON anew would not keep.
const primary = `{
  "cniVersion": "1.0.0",
  "name":  "e2e",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "mtu": 1450,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
  ]
}
`

// ConfList is the path of the network's list.
const ConfList = confDir + "/10-e2e.conflist"

func (c *Cluster) startContainerd(t testing.TB) {
	t.Helper()
	for _, name := range []string{"ptp", "host-local", "portmap", "loopback"} {
		require.NoError(t, copyFile(filepath.Join(binDir, name), filepath.Join(cniPlugins, name)))
	}
	require.NoError(t, os.WriteFile(ConfList, []byte(primary), 0o644))
	config := filepath.Join(machine.Dir, "containerd.toml")
	require.NoError(t, os.WriteFile(config, []byte(containerdConfig), 0o644))
	binary, err := program("containerd")
	require.NoError(t, err)
	p := c.start(t, "containerd", binary, "--config", config)
	require.NoError(t, p.WaitFor(30*time.Second, func() error { return ctr("version") }))
}

// ctr runs containerd's own client.
func ctr(args ...string) error {
	binary, err := program("ctr")
	if err != nil {
		return err
	}
	if out, err := exec.Command(binary, append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %v: %w: %s", args, err, out)
	}
	return nil
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
