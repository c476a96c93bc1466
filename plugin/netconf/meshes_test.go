package netconf_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// TestMeshes: what the package does not know is kept as it is, and written after the keys that it knows.
func TestMeshes(t *testing.T) {
	c, unknown, err := netconf.Parse([]byte(`{"type": "meshcni", "osm": {"b": [1, "<&"], "a": null}, "acme": 1, "none": null, "cni.dev/x": {}, "ipam": {}, "kubernetes": {"color": 1}}`), meshcni.Identity{})
	require.NoError(t, err)
	assert.Equal(t, []string{"acme", "kubernetes.color", "none", "osm"}, unknown)
	assert.Equal(t, map[string]json.RawMessage{"osm": json.RawMessage(`{"b": [1, "<&"], "a": null}`), "acme": json.RawMessage(`1`)}, c.Meshes)
	line, err := c.MarshalJSON()
	require.NoError(t, err)
	assert.Contains(t, string(line), `},"acme":1,"osm":{"b":[1,"<&"],"a":null},"capabilities":{`)
	again, unknown, err := netconf.Parse(c.Marshal(), meshcni.Identity{})
	require.NoError(t, err)
	assert.Equal(t, []string{"acme", "osm"}, unknown)
	assert.Equal(t, c.Marshal(), again.Marshal())
	assert.Contains(t, string(netconf.Config{Meshes: map[string]json.RawMessage{"osm": json.RawMessage(`{`)}}.Marshal()), `"osm": "{"`, "the mesh refuses it")
}
