package dialect

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/selection"
)

// Sandboxes is a mesh's configuration under runtimes other than Kubernetes', which
// pass a sandbox's configuration to the plugin in CNI_ARGS.
type Sandboxes struct {
	// Key is the key of CNI_ARGS that holds the configuration. A sandbox that has it is in the mesh.
	Key string
	// Build reads it, as Dialect.Build reads a pod's. Only the Input's addresses are set.
	Build func(args map[string]string, in Input) (Reading, error)
}

// ForSandbox returns the mesh's dialect for the sandbox that CNI_ARGS, by key, configure: it selects every pod and
// reads only the arguments. It reports whether they have the mesh's key.
func (d Dialect) ForSandbox(args map[string]string) (Dialect, bool) {
	if d.Sandboxes == nil {
		return d, false
	}
	if _, ok := args[d.Sandboxes.Key]; !ok {
		return d, false
	}
	build := d.Sandboxes.Build
	d.Policy, d.NeedsNamespace, d.Applied = selection.Policy{}, false, nil
	d.Build = func(in Input) (Reading, error) {
		in.Namespace, in.look = &corev1.Namespace{}, nil // there is none, which is known
		return build(args, in)
	}
	return d, true
}
