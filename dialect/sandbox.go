package dialect

import (
	"github.com/meshcni/meshcni/selection"
)

// SandboxKeys are the keys of CNI_ARGS by which runtimes ask the CNI plugins of
// known meshes to redirect a sandbox. Whoever does not read the one that is
// there must not let the sandbox pass: it would start outside its mesh.
var SandboxKeys = []string{"CONSUL_IPTABLES_CONFIG"}

// Sandboxes is for runtimes other than Kubernetes', which hand a sandbox's
// configuration to the plugin in CNI_ARGS.
type Sandboxes struct {
	// Key is the one of CNI_ARGS that has the configuration, and tells that the
	// sandbox is in the mesh.
	Key string
	// Build reads it, as Dialect.Build reads a pod's. Of the Input only the
	// addresses say something.
	Build func(args map[string]string, in Input) (Built, error)
}

// ForSandbox returns the mesh as it is for the sandbox that the arguments, those
// of CNI_ARGS by key, configure: it selects whatever pod stands for the sandbox,
// and reads the arguments alone. It reports whether they have the mesh's key.
func (d Dialect) ForSandbox(args map[string]string) (Dialect, bool) {
	if d.Sandboxes == nil {
		return d, false
	}
	if _, ok := args[d.Sandboxes.Key]; !ok {
		return d, false
	}
	build := d.Sandboxes.Build
	d.Policy, d.NeedsNamespace, d.Applied = selection.Policy{}, false, nil
	d.Build = func(in Input) (Built, error) { return build(args, in) }
	return d, true
}
