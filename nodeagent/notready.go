//go:build linux

package nodeagent

import "github.com/meshcni/meshcni/status"

// The codes by which the agent is not ready, beside those of package installer. docs/troubleshooting.md says what to do about each.
const (
	codeDialectsInvalid    status.Code = "dialects-invalid"     // a dialect cannot work, so the plugin refuses pods
	codeNoBackend          status.Code = "no-backend"           // no backend takes pods' rules
	codeNoHook             status.Code = "no-runtime-hook"      // nothing but the runtime's hook captures pods, and it is not there
	codePassedBy           status.Code = "passed-by"            // pods of the mesh start without the plugin although its entry is in place
	codeRepair             status.Code = "repair"               // repair is on and does not work
	codePodsUnknown        status.Code = "pods-unknown"         // the plugin depends on the agent, which does not know the node's pods
	codeAmbientFailed      status.Code = "ambient-failed"       // the controller of the node's proxy cannot begin
	codeAmbientPodsUnknown status.Code = "ambient-pods-unknown" // it does not know the node's pods
	codeAmbientReleasing   status.Code = "ambient-releasing"    // it gives all pods back
	codeAmbientPodsHeld    status.Code = "ambient-pods-held"    // there is none, and pods are still in its care
	codeNoProxy            status.Code = "no-proxy"             // no proxy serves the node, and readiness depends on one
)
