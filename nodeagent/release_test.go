//go:build linux

package nodeagent

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// TestNothingToRelease: a node on which no agent has had pods of a node's proxy, or of which all were released, is uninstalled without
// asking anybody, whatever the settings say.
func TestNothingToRelease(t *testing.T) {
	dir := t.TempDir()
	p, s := Options{Dialects: builtin.All()}.withDefaults(), DefaultConfig(meshcni.Identity{})
	s.RunDir, s.Ambient.Enabled = dir, true
	assert.False(t, p.hadProxied(s))
	record := attachment.Record{
		ID: attachment.ID{Network: "net", ContainerID: "c1", IfName: "eth0"}, Pod: status.ID{Namespace: "shop", Name: "cart", UID: "u1"},
		Reason: "releasing", Dialect: "ambient", By: "agent", Time: time.Now(),
	}
	require.NoError(t, attachment.Open(dir).Write(record))
	assert.False(t, p.hadProxied(s), "it was released")
	record.Selected, record.Reason, record.Backend = true, "selected", "nftables"
	require.NoError(t, attachment.Open(dir).Write(record))
	assert.True(t, p.hadProxied(s))
	require.NoError(t, attachment.Open(dir).Remove(record.ID))
	assert.False(t, p.hadProxied(s))
	require.NoError(t, os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600))
	assert.True(t, p.hadProxied(s))
}

// TestUnserved: an agent without ambient mode says that pods may be left with the proxy by the one before it.
func TestUnserved(t *testing.T) {
	dir, o := node(t)
	lock := filepath.Join(dir, "run", lockFile)
	require.NoError(t, os.MkdirAll(filepath.Dir(lock), 0o755))
	require.NoError(t, os.WriteFile(lock, nil, 0o600))
	o.Config.HealthAddress = "127.0.0.1:0"
	agent := start(t, o)
	readyz := func() string {
		resp, err := http.Get(agent.base(t) + "/readyz") //nolint:noctx // a test's own
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(body)
	}
	assert.Eventually(t, func() bool {
		text := readyz()
		return strings.HasPrefix(text, "ok\n") && strings.Contains(text, "\nwarning: ambient: pods of this node may still be in the care of its proxy")
	}, netnstest.Patience, 10*time.Millisecond)
	require.NoError(t, os.Remove(lock))
	assert.NotContains(t, readyz(), "ambient")
	require.NoError(t, agent.end())
}
