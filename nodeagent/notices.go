//go:build linux

package nodeagent

// The codes of what the agent tells of the node, beside those of package installer, of which the first two are.
const (
	noticeOtherMesh     = "other-mesh"           // another mesh's plugin is beside ours
	noticeConfigRefused = "config-refused"       // the configuration that has changed is refused
	noticeOtherDialect  = "other-dialect"        // pods are of a mesh that the plugin is not configured for
	noticeAddressTaken  = "address-taken"        // another program has an address of the agent's
	noticePodsOutdated  = "pods-outdated"        // the API server has not told of the node's pods for long
	noticeCilium        = "cilium-socket-lb"     // Cilium may translate pods' connections before the rules see them
	noticeHookLost      = "runtime-hook-lost"    // the container runtime's hook is not connected
	noticeHookRefused   = "runtime-hook-refused" // the runtime ended the connection when it was told what is wanted
	noticeHookLate      = "runtime-hook-late"    // answers came after the runtime's patience had ended
	noticeHookHeld      = "runtime-hook-held"    // a pod's containers are refused at the hook
	noticePodsHeld      = "ambient-pods-held"    // pods are still in the care of a node's proxy that is switched off
)
