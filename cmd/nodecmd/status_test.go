//go:build linux

package nodecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// written is what an agent writes, as of now.
func written(t *testing.T, runDir string, s nodeagent.Status) {
	t.Helper()
	s.Time = time.Now()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	path := filepath.Join(runDir, "status.json")
	require.NoError(t, os.MkdirAll(runDir, 0o755))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	later := time.Now().Add(time.Minute) // so that nobody waits for it
	require.NoError(t, os.Chtimes(path, later, later))
}

// TestStatus: the commands say what the agent has written, and exit 1 unless all is well.
func TestStatus(t *testing.T) {
	dir, env := node(t)
	pod := func(name, uid string, s status.Pod) status.Pod {
		s.ID, s.Dialect = status.ID{Namespace: "shop", Name: name, UID: uid}, "istio"
		return s
	}
	s := nodeagent.Status{Node: "n1", Ready: true, News: []status.News{news.New(status.KindPod, news.Uncaptured, "1")}, Pods: []status.Pod{
		pod("cart", "u1", status.Pod{State: status.StateCaptured, Reason: "recorded", Since: time.Unix(0, 0), Backend: "nftables"}),
		pod("late", "u2", status.Pod{State: status.StateFailed, Reason: "not-called", Detail: "its network was set up without the plugin"}),
		pod("odd", "u3", status.Pod{State: status.StateUnknown, Reason: "no-trace"}),
	}}
	written(t, dir+"/run", s)
	code, out, _ := run(t, env, "status", "-o", "json")
	assert.Zero(t, code)
	assert.Contains(t, out, `"node": "n1"`)
	code, out, _ = run(t, env, "status")
	assert.Equal(t, 1, code, "a pod bypasses the mesh")
	assert.Equal(t, `node n1: ready
warning: uncaptured: 1
failed: shop/late not-called: its network was set up without the plugin
`, out)
	code, out, _ = run(t, env, "pods")
	assert.Equal(t, 1, code)
	assert.Equal(t, `NAMESPACE  NAME  UID  DIALECT  STATE     REASON      SINCE                 BACKEND   BYPASSES  CONNTRACK
shop       cart  u1   istio    captured  recorded    1970-01-01T00:00:00Z  nftables  -         -
shop       late  u2   istio    failed    not-called  -                     -         -         -
shop       odd   u3   istio    unknown   no-trace    -                     -         -         -
`, out)
	s.Pods = s.Pods[:1]
	written(t, dir+"/run", s)
	code, _, _ = run(t, env, "status")
	assert.Zero(t, code)
	s.Ready, s.News = false, append(s.News, news.New(status.KindReadiness, "no-network", "none"))
	written(t, dir+"/run", s)
	code, out, _ = run(t, env, "status")
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "node n1: not ready\nnot ready: no-network: none\n")
	require.NoError(t, os.Remove(dir+"/run/status.json"))
	code, _, stderr := run(t, env, "status")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "is it running on this node?")
}

// TestPodsSayHowFull: a pod is in the mesh all the same.
func TestPodsSayHowFull(t *testing.T) {
	var out bytes.Buffer
	assert.True(t, showPods(visible.To(&out), nodeagent.Status{Pods: []status.Pod{{State: status.StateCaptured, ConntrackPercent: 97}}}))
	assert.Contains(t, out.String(), " 97%\n")
}

// TestLook: a line for each pod that is asked for, whether it is there or not.
func TestLook(t *testing.T) {
	dir, env := node(t)
	code, out, errs := run(t, env, "look", "--run-dir", dir+"/run", "--uid", "u1", "--uid", "u2")
	require.Equal(t, 0, code, errs)
	assert.Empty(t, errs, "it would be in the pod's log too")
	var uids []string
	for line := range strings.Lines(out) {
		var l agentapi.Looked
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		assert.NotEmpty(t, l.LiveError, "no such pod runs")
		uids = append(uids, l.UID)
	}
	assert.Equal(t, []string{"u1", "u2"}, uids)
}
