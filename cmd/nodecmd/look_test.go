//go:build linux

package nodecmd

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect"
)

// TestLook: without an agent, what is on the node of a pod is printed as the agent would tell it.
func TestLook(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir, env := node(t)
	b, _ := capturedPod(t, dir)
	look := func(uids ...string) (all []agentapi.Looked) {
		args := []string{"look", "--run-dir", dir + "/run"}
		for _, uid := range uids {
			args = append(args, "--uid", uid)
		}
		code, out, errs := run(t, env, args...)
		require.Equal(t, 0, code, errs)
		assert.Empty(t, errs, "it would be in the pod's log too")
		for line := range strings.Lines(out) {
			var l agentapi.Looked
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			all = append(all, l)
		}
		return all
	}

	all := look("u1", "u2")
	require.Len(t, all, 2)
	assert.Equal(t, "u1", all[0].UID)
	require.Len(t, all[0].Records, 1)
	assert.Empty(t, all[0].LiveError)
	require.NotEmpty(t, all[0].Live)
	assert.True(t, all[0].Live[0].Ours)
	assert.Empty(t, all[0].Differences)
	assert.Equal(t, "u2", all[1].UID)
	assert.Empty(t, all[1].Records)
	assert.NotEmpty(t, all[1].LiveError, "no such pod runs")
	assert.NotNil(t, all[1].Live)

	require.NoError(t, b.Remove(t.Context(), redirect.Default().Names.Owner()))
	all = look("u1")
	assert.Empty(t, all[0].Live)
	assert.NotEmpty(t, all[0].Lost)

	require.NoError(t, os.WriteFile(dir+"/run/attachments/broken.json", []byte("{"), 0o600))
	assert.Contains(t, look("u1")[0].RecordsError, "1 records cannot be read: ")

	for _, args := range [][]string{{"look"}, {"look", "--uid", "../x"}} {
		code, _, errs := run(t, env, args...)
		assert.Equal(t, 2, code, errs)
	}
}
