//go:build linux

package nodecmd

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/installer"
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
	c := installer.Default()
	c.BinSourceDir, c.CNIBinDirs, c.CNIConfDir, c.RunDir, c.CNICacheDir = t.TempDir(), []string{t.TempDir()}, t.TempDir(), t.TempDir(), t.TempDir()
	p := Program{Config: c, Dialects: []dialect.Dialect{{Name: "acme", Policy: selection.Policy{Selectors: []selection.Selector{}}}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- p.Main(ctx, []string{"run", "--kubernetes-service-host=::1", "--health-address=" + address, "--metrics-address="})
	}()
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
	cancel()
	assert.Equal(t, 0, <-done)
}

// TestDialectsAreAskedOnce whether they can work: an agent reads its settings again every few seconds.
func TestDialectsAreAskedOnce(t *testing.T) {
	_, env := node(t)
	mesh, built := linkerd.New(), 0
	build := mesh.Build
	mesh.Build = func(in dialect.Input) (dialect.Result, error) {
		built++
		return build(in)
	}
	p := Program{Env: lookup(env), Dialects: []dialect.Dialect{mesh}}
	p.setDefaults()
	first := built
	require.Positive(t, first)
	for range 3 {
		p.setDefaults()
		_, err := p.resolve(pflag.NewFlagSet("", pflag.ContinueOnError))
		require.NoError(t, err)
	}
	assert.Equal(t, first, built)
}
