//go:build linux

package nodecmd

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// TestReleaseByAgent: without an agent nothing is released, and that is no failure.
func TestReleaseByAgent(t *testing.T) {
	dir := t.TempDir()
	code, _, stderr := run(t, map[string]string{"MESHCNI_RUN_DIR": dir}, "release", "--by-agent")
	assert.Zero(t, code, stderr)
	assert.Contains(t, stderr, "no agent runs on this node")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left, "it did not begin to do it itself")
}

// releasing answers requests for a release.
type releasing struct {
	agentsock.Handler

	asked chan agentsock.ReleaseOptions
	left  []status.Pod
}

func (r releasing) Release(_ context.Context, how agentsock.ReleaseOptions) ([]status.Pod, error) {
	r.asked <- how
	return r.left, nil
}

func (releasing) Ready(context.Context) error { return nil }

// TestReleaseFlags: what is typed is what the agent is asked for, and the exit code says whether it has done it.
func TestReleaseFlags(t *testing.T) {
	serve := func(runDir string, h releasing) {
		require.NoError(t, os.MkdirAll(runDir, 0o755))
		ctx, cancel := context.WithCancel(t.Context())
		done, path := make(chan error, 1), filepath.Join(runDir, agentsock.Name)
		go func() { done <- (&agentsock.Server{Handler: h}).Serve(ctx, path) }()
		t.Cleanup(func() {
			cancel()
			assert.NoError(t, <-done)
		})
		require.Eventually(t, func() bool { return agentsock.Client{Path: path}.Ready(ctx) == nil }, netnstest.Patience, time.Millisecond)
	}
	dir, env := node(t)
	code, _, stderr := run(t, env, "release", "--to", "istio-cni", "--undo")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "exclude each other")
	code, _, stderr = run(t, env, "release", "--undo")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "no agent runs on this node")

	all := releasing{asked: make(chan agentsock.ReleaseOptions, 8)}
	serve(dir+"/run", all)
	for flags, want := range map[string]agentsock.ReleaseOptions{"--to=istio-cni": {To: "istio-cni"}, "--undo": {Undo: true}, "-otext": {}} {
		code, stdout, stderr := run(t, env, "release", flags)
		assert.Zero(t, code, stderr)
		assert.Empty(t, stdout)
		assert.Equal(t, want, <-all.asked)
	}
	busy, env := node(t)
	serve(busy+"/run", releasing{asked: make(chan agentsock.ReleaseOptions, 8), left: []status.Pod{
		{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, State: status.StateDrifted, Reason: "not-released"},
	}})
	code, stdout, _ := run(t, env, "release", "--to=istio-cni")
	assert.Equal(t, 1, code, "one pod is left")
	assert.Contains(t, stdout, "cart")
}
