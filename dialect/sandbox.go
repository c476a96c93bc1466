package dialect

import "github.com/meshcni/meshcni/selection"

// Sandboxes is for runtimes other than Kubernetes', which hand a sandbox's
// configuration to the plugin in CNI_ARGS.
type Sandboxes struct {
	// Key is the one of CNI_ARGS that has the configuration, and tells that the
	// sandbox is in the mesh.
	Key string
	// Build reads it, as Dialect.Build reads a pod's. Of the Input only the
	// addresses say something.
	Build func(args map[string]string, in Input) (Result, error)
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
	d.Build = func(in Input) (Result, error) { return build(args, in) }
	return d, true
}
