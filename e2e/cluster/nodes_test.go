package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The second node, which only some tests have.
const (
	secondName = "node-2"
	secondIP   = "10.89.0.2"
	secondPods = "10.88.8.0/24"
)

// secondLayout makes the namespaces of a shell into those of a node: its own /run, /var/lib and the directories of the network's plugins,
// and the directory of the tests' files, which both nodes have.
const secondLayout = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /mnt
mkdir /mnt/netns /mnt/lock /mnt/node "/mnt/$(basename "$1")"
mount --bind "$1" "/mnt/$(basename "$1")"
mount --rbind /mnt /run
for dir in /var/lib /var/log /etc/cni /opt/cni; do mount -t tmpfs -o mode=0755 tmpfs $dir; done
mkdir /etc/cni/net.d /opt/cni/bin
mount --make-rshared /
ip link set lo up
ip address add "$2/32" dev lo
echo 1 >/proc/sys/net/ipv4/ip_forward
touch /run/node/ready
exec sleep infinity
`

func do(t *testing.T, command ...string) {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(command, " "), out)
}

// secondNode adds a node to the cluster, with a kubelet, a container runtime, files and a network of its own. A pair of interfaces is the
// wire to the first one. It is gone when the test ends.
func (c *cluster) secondNode(t *testing.T) {
	t.Helper()
	start := time.Now()
	holder, err := proctest.Start(proctest.Options{Dir: machine.Dir, Name: secondName}, "unshare", "--mount", "--net", "sh", "-c", secondLayout, "sh", machine.Dir, secondIP)
	require.NoError(t, err)
	t.Cleanup(holder.Kill)
	pid := holder.Pid()
	require.NoError(t, holder.WaitFor(netnstest.Patience, func() error {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/run/node/ready", pid))
		return err
	}))

	do(t, "ip", "link", "add", secondName, "type", "veth", "peer", "name", "wire", "netns", strconv.Itoa(pid))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", secondName).Run() })
	do(t, "ip", "link", "set", secondName, "up")
	do(t, "ip", "route", "add", secondIP, "dev", secondName, "src", nodeIP)
	do(t, "ip", "route", "add", secondPods, "via", secondIP, "dev", secondName, "src", nodeIP)
	do(t, onenode.Inside(pid, "ip", "link", "set", "wire", "up")...)
	do(t, onenode.Inside(pid, "ip", "route", "add", nodeIP, "dev", "wire", "src", secondIP)...)
	do(t, onenode.Inside(pid, "ip", "route", "add", "default", "via", nodeIP, "dev", "wire", "src", secondIP)...)

	root := fmt.Sprintf("/proc/%d/root", pid)
	do(t, "cp", "-r", containerd.CNIBinDir, root+filepath.Dir(containerd.CNIBinDir))
	require.NoError(t, os.WriteFile(root+confList, []byte(strings.Replace(primary, "10.88.7.0/24", secondPods, 1)), 0o644))
	runtime, err := c.Containerd.StartBeside(pid)
	require.NoError(t, err)
	t.Cleanup(runtime.Kill)
	require.NoError(t, onenode.NameImages(runtime.Ctr))

	n := onenode.Node{Name: secondName, IP: secondIP, Statics: machine.Dir + "/static-pods-2", Cgroups: machine.CgroupParent() + "/" + secondName, Inside: pid}
	require.NoError(t, machine.MakeGroup(secondName))
	bootID, err := c.Launch("kubelet-2", n, "")
	require.NoError(t, err)
	t.Cleanup(func() { // also if its pods do not go: later tests have one node
		c.Processes["kubelet-2"].Kill()
		delete(c.Processes, "kubelet-2")
		c.Run(t, "kubectl", "delete", "node", secondName)
	})
	t.Cleanup(func() {
		eventually(t, soon, "its pods are gone", func() error {
			if pods := c.Run(t, "kubectl", "get", "pods", "-A", "--field-selector", "spec.nodeName="+secondName, "-o", "name"); pods != "" {
				return errors.New(pods)
			}
			return nil
		})
	})
	require.NoError(t, c.Ready("kubelet-2", secondName, bootID))
	stage("second node ready", start)
}

// TestTwoNodes: the programs that ask every node ask both, and the pods of each reach those of the other, or it is said which do not.
func TestTwoNodes(t *testing.T) {
	c := sharedCluster(t)
	c.secondNode(t)
	install(t, c)

	step(t, c, "status", func(t *testing.T) {
		var out string
		eventually(t, soon, "all is well", func() error {
			code, said, errs := c.meshcni(t, "status")
			out = said
			if code != 0 {
				return errors.New(said + errs)
			}
			return nil
		})
		for _, node := range []string{nodeName, secondName} {
			assert.Regexp(t, `(?m)^`+node+` +ready `, out)
		}
	})
	step(t, c, "pods of each node", func(t *testing.T) {
		code, out, errs := c.meshcni(t, "test")
		assert.Equal(t, 0, code, out+errs)
		for _, node := range []string{nodeName, secondName} {
			assert.Regexp(t, `(?m)^`+node+` +istio +IPv4 +inbound from outside +ok$`, out)
		}
		assert.Contains(t, out, "2 of 2 nodes were tried: 6 ok, 0 failed, 0 unknown\n")
	})
	c.nothingOfTests(t)
	assert.Contains(t, uninstall(t, c), "The plugin is uninstalled on all 2 nodes. ")
	assertClean(t, c)
}
