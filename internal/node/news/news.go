// Package news has the codes of what an agent says of its node, and makes and reads lists of it.
package news

import (
	"errors"
	"strings"

	"github.com/meshcni/meshcni/status"
)

// The codes of [status.KindNotice]. Package status has the words of each.
const (
	Ready         status.Code = "ready"                // no reason is left why new pods are not captured
	OwnFileTaken  status.Code = "own-file-taken"       // the entry was fought over, so the agent keeps a file of its own
	OtherMesh     status.Code = "other-mesh"           // another mesh's plugin is beside ours
	OtherMeshGone status.Code = "other-mesh-gone"      // and no longer
	ConfigRefused status.Code = "config-refused"       // the configuration that has changed is refused
	OtherDialect  status.Code = "other-dialect"        // pods are of a mesh that the plugin is not configured for
	AddressTaken  status.Code = "address-taken"        // another program has an address of the agent's
	PodsOutdated  status.Code = "pods-outdated"        // the API server has not told of the node's pods for long
	Cilium        status.Code = "cilium-socket-lb"     // Cilium may translate pods' connections before the rules see them
	HookLost      status.Code = "runtime-hook-lost"    // the container runtime's hook is not connected
	HookRefused   status.Code = "runtime-hook-refused" // the runtime ended the connection when it was told what is wanted
	HookLate      status.Code = "runtime-hook-late"    // answers came after the runtime's patience had ended
	HookHeld      status.Code = "runtime-hook-held"    // a pod's containers are refused at the hook
)

// The codes of [status.KindFinding] and [status.KindPod], which are no notices: they have no type of their own, so that nobody lists them among those.
const (
	Uncaptured  = "uncaptured"   // pods bypass the mesh
	Drifted     = "drifted"      // pods lack rules
	CannotTell  = "cannot-tell"  // it is not known whether pods have their rules
	NotEvicting = "not-evicting" // the agent is not proven to be confined to its node
	Detection   = "detection"    // pods that start without the plugin are not looked for
	Ambient     = "ambient"      // of the pods of the node's proxy
	Conntrack   = "conntrack"    // tables of connections are nearly full
)

// NotReady returns the reason that new pods of the mesh are not captured; nothing without an error.
func NotReady(code status.Code, err error) []status.News {
	if err == nil {
		return nil
	}
	return []status.News{New(status.KindReadiness, code, err.Error())}
}

// New returns news that needs attention, in one line that does not begin with its own code.
func New(kind status.Kind, code status.Code, text string) status.News {
	text = strings.ReplaceAll(strings.TrimPrefix(text, string(code)+": "), "\n", "; ")
	return status.News{Kind: kind, Code: code, Text: text, Attention: true}
}

// Refused returns the news of a changed configuration that is refused.
func Refused(why string) status.News {
	return New(status.KindNotice, ConfigRefused, "the changed configuration is refused, and the one before it is in force: "+why)
}

// Err joins the reasons that new pods are not captured, each in a line that begins with its code; nil if they are.
func Err(all []status.News) error {
	var errs []error
	for _, reason := range Reasons(all) {
		errs = append(errs, errors.New(reason))
	}
	return errors.Join(errs...)
}

// Reasons returns the lines of readiness, each with its code.
func Reasons(all []status.News) (texts []string) {
	for _, n := range all {
		if n.Kind == status.KindReadiness {
			texts = append(texts, n.String())
		}
	}
	return texts
}

// Warnings returns the lines of all else that needs attention.
func Warnings(all []status.News) (texts []string) {
	for _, n := range all {
		if n.Kind != status.KindReadiness && n.Attention {
			texts = append(texts, n.String())
		}
	}
	return texts
}
