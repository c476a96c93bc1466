package runtime

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// recorder is the plugin that records the runtime's calls: the test tool, under this name.
const recorder = "recorder"

// recordDir is where it leaves them, and looks for those that are to fail.
const recordDir = "/run/calls"

// recorded is a network in which each call of its plugins is recorded. The recorder comes before ours in the chain: it is
// told first of what is added, and last of what is deleted.
func recorded(network string) string {
	return strings.Replace(network, portmap, `{"type": "`+recorder+`", "calls": "`+filepath.Join(recordDir, "calls")+`", "capabilities": {"`+netconf.AnnotationsCapability+`": true}}, `+portmap, 1)
}

// call is what podtool's recorder writes.
type call struct {
	Command, ContainerID, NetNS, IfName, Args string
	Config                                    struct {
		CNIVersion    string
		PrevResult    json.RawMessage
		RuntimeConfig map[string]json.RawMessage
		Valid         []struct{ ContainerID, IfName string } `json:"cni.dev/valid-attachments"`
	}
}

// calls are those since the last time. They are forgotten.
func calls(t testing.TB) (all []call) {
	t.Helper()
	path := filepath.Join(recordDir, "calls")
	text, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
	}
	for line := range strings.Lines(string(text)) {
		var c call
		require.NoError(t, json.Unmarshal([]byte(line), &c))
		all = append(all, c)
	}
	return all
}

// commands are what the sandbox's network was called with, or the runtime's network without a sandbox.
func commands(all []call, id string) (commands []string) {
	for _, c := range all {
		if c.ContainerID == id {
			commands = append(commands, c.Command)
		}
	}
	return commands
}

// refuse has the network fail a command until the function that it returns is called.
func refuse(t testing.TB, command string) (undo func()) {
	t.Helper()
	path := filepath.Join(recordDir, command)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	t.Cleanup(func() { _ = os.Remove(path) })
	return func() { require.NoError(t, os.Remove(path)) }
}

// newRecordedNode is newNode with a network in which calls are recorded.
func newRecordedNode(t testing.TB, k kind, network string) *node {
	t.Helper()
	require.NoError(t, os.RemoveAll(recordDir))
	require.NoError(t, os.MkdirAll(recordDir, 0o755))
	return newNode(t, k, recorded(network))
}

// checks are the outcomes of the plugin's CHECKs of a pod, as it has logged them.
func checks(t testing.TB, pod string) (outcomes []string) {
	t.Helper()
	for _, r := range records(t) {
		if r.Verb == "CHECK" && r.Pod == pod {
			outcomes = append(outcomes, r.Msg+" "+r.Outcome)
		}
	}
	return outcomes
}

// testCalls: what a runtime calls the plugin with when a pod starts and ends, what the plugin answers, and that a DEL that
// fails elsewhere in the network is done again.
func testCalls(t *testing.T, k kind) {
	n := newRecordedNode(t, k, ptp(true))
	n.runAgent(t)
	ns := n.namespace(t)
	calls(t)
	pods := n.runAll(t, meshed(ns, "meshed"), plain(ns, "plain"))
	requireCaptured(t, pods[0])
	requireFree(t, pods[1])

	started := calls(t)
	want, outcomes := []string{"ADD"}, [2][]string{}
	if k.checks {
		want = append(want, "CHECK")
		outcomes = [2][]string{{"decision checked"}, {"decision passed"}}
	}
	for i, s := range pods {
		require.Equal(t, want, commands(started, s.ID))
		assert.Equal(t, outcomes[i], checks(t, s.Pod.Name))
	}
	netns, err := pods[0].NetNS(t.Context())
	require.NoError(t, err)
	for _, c := range started {
		assert.Equal(t, k.version, c.Config.CNIVersion)
		assert.Contains(t, c.Args, "K8S_POD_NAMESPACE="+ns)
		assert.NotEmpty(t, c.Config.PrevResult, "%s", c.Command)
		if c.ContainerID == pods[0].ID {
			assert.Equal(t, resolved(t, netns), resolved(t, c.NetNS))
			assert.Contains(t, string(c.Config.RuntimeConfig[netconf.AnnotationsCapability]), istio.StatusAnnotation)
		}
	}

	// The last plugin of the chain is called first: ours has done its DEL when the recorder fails.
	undo := refuse(t, "DEL")
	require.Error(t, pods[0].Stop(t.Context()))
	require.Equal(t, "DEL", commands(calls(t), pods[0].ID)[0])
	undo()
	require.NoError(t, pods[0].Stop(t.Context()))
	again := commands(calls(t), pods[0].ID)
	require.NotEmpty(t, again, "what failed is done again")
	require.NoError(t, pods[0].Stop(t.Context()))
	require.NoError(t, pods[0].Remove(t.Context()))
	assert.NoFileExists(t, netns)
	requireFree(t, pods[1])

	require.NoError(t, pods[1].Stop(t.Context()))
	require.NoError(t, pods[1].Stop(t.Context()))
	require.NoError(t, pods[1].Remove(t.Context()))
	for _, command := range slices.Concat(again, commands(calls(t), pods[1].ID)) {
		assert.Equal(t, "DEL", command)
	}
	for _, r := range records(t) {
		assert.NotEqual(t, "failed", r.Msg, "the plugin failed at nothing")
	}
}

// resolved is the path that a network namespace's is without symbolic links: /var/run is one to /run.
func resolved(t testing.TB, path string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	require.NoError(t, err)
	return filepath.Join(dir, filepath.Base(path))
}
