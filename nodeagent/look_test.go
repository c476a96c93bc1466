//go:build linux

package nodeagent

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect"
)

// TestLook: without an agent, what is on the node of a pod is as the agent would tell it.
func TestLook(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir, _ := node(t)
	b, record := capturedPod(t, dir)
	look := func(uids ...string) (all []agentapi.Pod) {
		for _, uid := range uids {
			all = append(all, Look(t.Context(), dir+"/run", "", nil, uid))
		}
		return all
	}

	all := look("u1", "u2")
	require.Len(t, all, 2)
	require.Len(t, all[0].Records, 1)
	assert.Empty(t, all[0].LiveError)
	require.NotEmpty(t, all[0].Live)
	assert.True(t, all[0].Live[0].Ours)
	assert.Empty(t, all[0].Differences)
	assert.Empty(t, all[1].Records)
	assert.NotEmpty(t, all[1].LiveError, "no such pod runs")
	assert.NotNil(t, all[1].Live)

	assert.Empty(t, all[0].Bypasses)
	assert.Empty(t, all[0].BypassError)

	out, err := exec.Command("nsenter", "--net="+record.NetNS.Path, "sh", "-ec", "ip link add eth0 type veth peer name peer0; ip tuntap add tap0 mode tap; tc qdisc add dev eth0 ingress; "+
		"tc filter add dev eth0 parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev tap0").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, []dialect.Bypass{{Code: dialect.BypassSandboxed, Interface: "eth0", HandedTo: "tap0, by tc"}}, look("u1")[0].Bypasses, "as Kata hands on what arrives")

	require.NoError(t, b.Remove(t.Context(), redirect.Default().Names.Owner()))
	all = look("u1")
	assert.Empty(t, all[0].Live)
	assert.NotEmpty(t, all[0].Lost)

	require.NoError(t, os.WriteFile(dir+"/run/attachments/broken.json", []byte("{"), 0o600))
	assert.Contains(t, look("u1")[0].RecordsError, "1 records cannot be read: ")
}
