//go:build linux

package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/nodecontrol"
)

// TestNoJournal: that pods' namespaces are not kept for the next agent is not only in the log.
func TestNoJournal(t *testing.T) {
	a := &ambientParts{store: netnsstore.New(netnsstore.Options{RunDir: t.TempDir(), ProcRoot: t.TempDir(), Log: quiet()})}
	p := newProxied(in(t.TempDir()), quiet(), nil)
	var h holder = ending{new(nodecontrol.Controller), a}
	p.set(&h)
	warnings := news.Warnings(p.News())
	require.Len(t, warnings, 1)
	assert.Contains(t, warnings[0], "ambient: a restart will have to find network namespaces anew: there is no journal of network namespaces: ")
}
