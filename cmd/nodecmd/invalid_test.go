//go:build linux

package nodecmd

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
)

// TestDialectsAreAskedOnce whether they can work: an agent reads its settings again every few seconds.
func TestDialectsAreAskedOnce(t *testing.T) {
	_, env := node(t)
	mesh, built := linkerd.New(), 0
	build := mesh.Build
	mesh.Build = func(in dialect.Input) (dialect.Reading, error) {
		built++
		return build(in)
	}
	p := Program{Env: lookup(env), Dialects: []dialect.Dialect{mesh}}
	p.setDefaults()
	first := built
	require.Positive(t, first)
	for range 3 {
		p.setDefaults()
		_, err := p.read(pflag.NewFlagSet("", pflag.ContinueOnError))
		require.NoError(t, err)
	}
	assert.Equal(t, first, built)
}
