//go:build linux

package nodeagent

import (
	"errors"
	"strings"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/nodecontrol"
)

// The codes by which the agent is not ready, beside those of package installer. docs/troubleshooting.md says what to do about each.
const (
	codeDialectsInvalid    installer.Code = "dialects-invalid"     // a dialect cannot work, so the plugin refuses pods
	codeNoBackend          installer.Code = "no-backend"           // no backend takes pods' rules
	codeNoHook             installer.Code = "no-runtime-hook"      // nothing but the runtime's hook captures pods, and it is not there
	codePassedBy           installer.Code = "passed-by"            // pods of the mesh start without the plugin although its entry is in place
	codeRepair             installer.Code = "repair"               // repair is on and does not work
	codePodsUnknown        installer.Code = "pods-unknown"         // the plugin depends on the agent, which does not know the node's pods
	codeAmbientFailed      installer.Code = "ambient-failed"       // the controller of the node's proxy cannot begin
	codeAmbientPodsUnknown installer.Code = "ambient-pods-unknown" // it does not know the node's pods
	codeAmbientReleasing   installer.Code = "ambient-releasing"    // it gives all pods back
	codeAmbientPodsHeld    installer.Code = "ambient-pods-held"    // there is none, and pods are still in its care
	codeNoProxy            installer.Code = "no-proxy"             // no proxy serves the node, and readiness depends on one
)

// notReady is a reason of the agent's own, in one line that begins with its code.
type notReady struct {
	code installer.Code
	err  error
}

// because returns nil without an error.
func because(code installer.Code, err error) error {
	if err == nil {
		return nil
	}
	return notReady{code, err}
}

func (n notReady) Error() string {
	return string(n.code) + ": " + strings.ReplaceAll(strings.TrimPrefix(n.err.Error(), string(n.code)+": "), "\n", "; ")
}

func (n notReady) Unwrap() error { return n.err }

// ambientCode is that of a controller which is not ready.
func ambientCode(err error) installer.Code {
	switch {
	case errors.Is(err, nodecontrol.ErrNotSynced):
		return codeAmbientPodsUnknown
	case errors.Is(err, nodecontrol.ErrReleasing):
		return codeAmbientReleasing
	}
	return codeNoProxy
}
