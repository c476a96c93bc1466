package kubectlcmd_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/dialect"
)

// TestInvalidDialect: dialects that cannot work are refused before a cluster is asked, with all that is wrong.
func TestInvalidDialect(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	p := kubectlcmd.Program{Identity: meshcni.Identity{Name: "acme"}, Stderr: &said, Dialects: []dialect.Dialect{{Name: "acme"}, {Name: "acme"}}}
	assert.Equal(t, 1, p.Main(t.Context(), []string{"status"}))
	assert.Contains(t, said.String(), "kubectl-acme: dialect acme: its Build is nil")
	assert.Contains(t, said.String(), "two dialects have this name")
}
