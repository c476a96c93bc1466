//go:build long

package cluster_test

import "testing"

// TestMigrateOthers is TestMigrate from the other plugins, and from Istio's whose agent cleans up after itself.
func TestMigrateOthers(t *testing.T) {
	meshes := switchedMeshes()
	for _, from := range []switched{
		{plugin: "istio-cni", mesh: meshes["istio"], chain: "ISTIO_OUTPUT"},
		{plugin: "kuma-cni", mesh: meshes["kuma"], chain: "KUMA_MESH_OUTBOUND"},
		{plugin: "consul-cni", mesh: meshes["consul"], chain: "CONSUL_PROXY_OUTPUT"},
	} {
		moveOver(t, from)
	}
}
