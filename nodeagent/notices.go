//go:build linux

package nodeagent

// The codes of what the agent tells of the node, beside those of package installer, of which the first two are.
const (
	noticeOtherMesh     = "other-mesh"        // another mesh's plugin is beside ours
	noticeConfigRefused = "config-refused"    // the configuration that has changed is refused
	noticeOtherDialect  = "other-dialect"     // pods are of a mesh that the plugin is not configured for
	noticeAddressTaken  = "address-taken"     // another program has an address of the agent's
	noticePodsOutdated  = "pods-outdated"     // the API server has not told of the node's pods for long
	noticeCilium        = "cilium-socket-lb"  // Cilium may translate pods' connections before the rules see them
	noticePodsHeld      = "ambient-pods-held" // pods are still in the care of a node's proxy that is switched off
)
