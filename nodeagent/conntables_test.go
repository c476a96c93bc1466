//go:build linux

package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/kernel/conntables"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

// TestNearlyFull: the fullest pods are named, the others counted; package acceptance has the running agent.
func TestNearlyFull(t *testing.T) {
	r := conntables.Reading{Limit: 1000}
	for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
		r.Tables = append(r.Tables, conntables.Table{Pod: status.ID{Namespace: "shop", Name: name}, Entries: 1000 - 22*i, Limit: r.Limit})
	}
	assert.Equal(t, []string{"conntrack: the connection tracking tables of 5 of the node's pods are nearly full, and a full one lets no new connection " +
		"through: shop/a has 1000, shop/b has 978, shop/c has 956, and 2 more of 1000 (nf_conntrack_max)"}, news.Warnings(nearlyFull(r)))
	r.Tables = r.Tables[5:]
	assert.Empty(t, nearlyFull(r))
}
