//go:build linux

package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/nodeproxy"
)

type anyPods = nodecontrol.Pods

// TestNoJournal: that pods' namespaces are not kept for the next agent is not only in the log.
func TestNoJournal(t *testing.T) {
	a := &ambientParts{store: netnsstore.New(netnsstore.Options{RunDir: t.TempDir(), ProcRoot: t.TempDir(), Log: quiet()})}
	p := newProxied(in(t.TempDir()), quiet(), nil)
	c, err := nodecontrol.New(nodecontrol.Options{
		Meshes: dialect.SetOf(ambient.New(ambient.Options{})), Pods: struct{ anyPods }{}, Namespaces: nodecontrol.Store{Store: a.store}, Proxy: struct{ nodeproxy.Proxy }{},
	})
	require.NoError(t, err)
	var h holder = ending{c, a}
	p.set(&h)
	warnings := news.Warnings(p.News())
	require.Len(t, warnings, 1)
	assert.Contains(t, warnings[0], "ambient: a restart will have to find network namespaces anew: there is no journal of network namespaces: ")
}
