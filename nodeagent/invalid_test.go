//go:build linux

package nodeagent

import (
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/selection"
)

// TestInvalidDialect: an agent of dialects that cannot work runs, is not ready, and says why.
func TestInvalidDialect(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	_, o := node(t)
	o.Config.HealthAddress, o.Dialects = address, []dialect.Dialect{{Name: "acme", Policy: selection.Policy{Selectors: []selection.Selector{}}}}
	o.Config.Plugin.Dialects = []string{"acme"}
	agent := start(t, o)
	ctx := t.Context()
	var said string
	require.Eventually(t, func() bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		said = string(body)
		return err == nil && response.StatusCode == http.StatusServiceUnavailable
	}, netnstest.Patience, 20*time.Millisecond)
	assert.Contains(t, "\n"+said, "\ndialects-invalid: dialect acme: ")
	assert.Contains(t, said, "Build is nil")
	assert.Contains(t, said, "Selectors is an empty list")
	require.Eventually(t, func() bool { _, err := os.Stat(o.Config.CNIBinDirs[0] + "/meshcni"); return err == nil }, netnstest.Patience, 10*time.Millisecond,
		"the plugin refuses pods, where none would let them start outside the mesh")
	require.Error(t, agent.Reload(DefaultConfig(meshcni.Identity{})))
	require.NoError(t, agent.end())
}

// TestNoDialects: an agent that is given none is no other mesh's without a word.
func TestNoDialects(t *testing.T) {
	_, o := node(t)
	o.Dialects = nil
	_, err := New(o)
	assert.ErrorContains(t, err, "Options.Dialects: ")
	assert.ErrorContains(t, err, "builtin.All has those of this module")
}
