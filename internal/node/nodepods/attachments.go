package nodepods

import (
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/status"
)

// Attachments returns an Options.Attached that asks what the node knows. It repeats what the runtime said of a pod when it set up its
// network; what cannot be read says nothing. It is safe for concurrent use.
func Attachments(known *inventory.Inventory) func(status.ID) bool {
	return func(pod status.ID) bool {
		return known.Has(func(r inventory.Row) bool { return r.Pod == pod })
	}
}
