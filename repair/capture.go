package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// traced tells whether a pod in the mesh was captured, by what the node knows of it. Types are those under which the plugin is called.
func traced(found inventory.Reading, pod *corev1.Pod, types []string) status.Pod {
	sandbox, record := found.Sandbox(pod), found.Record(pod)
	recorded := record != nil
	var since time.Time
	var lists []string
	ours, delegated, multus, blank := false, false, false, false
	for _, n := range sandbox {
		if n.Source == inventory.Runtime { // it does not say by what the network was set up
			continue
		}
		since = n.Made
		ours = ours || slices.ContainsFunc(n.Types, func(typ string) bool { return slices.Contains(types, typ) })
		delegated = delegated || slices.ContainsFunc(n.Types, func(typ string) bool { return strings.HasPrefix(typ, "multus") })
		multus, blank = multus || n.Source == inventory.Multus, blank || len(n.Types) == 0
		lists = append(lists, fmt.Sprintf("%s (%s)", n.Network, strings.Join(n.Types, ", ")))
	}
	slices.Sort(lists)
	switch {
	case recorded && record.Selected:
		return status.Pod{State: status.StateCaptured, Reason: statuscode.Recorded, Detail: "the plugin's record says so", Since: record.Time, Backend: string(record.Backend)}
	case recorded && record.Reason == status.CodeAgentPod:
		return status.Pod{State: status.StateCaptured, Reason: statuscode.Recorded, Detail: "the plugin let it through as the agent's own", Since: record.Time}
	case recorded:
		return status.Pod{State: status.StateFailed, Reason: statuscode.PassedOver,
			Detail: fmt.Sprintf("the plugin passed it over (%s) when it started, and would not do so now", record.Reason), Since: record.Time}
	case ours:
		return status.Pod{State: status.StateCaptured, Reason: statuscode.Attached, Detail: "its network was set up with the plugin", Since: since}
	case delegated && !multus:
		return status.Pod{State: status.StateUnknown, Reason: statuscode.Delegated, Detail: "Multus set up its network, and its own cache has nothing of the pod", Since: since}
	case blank:
		return status.Pod{State: status.StateUnknown, Reason: statuscode.Unreadable, Detail: "the runtime's cache does not say by which plugins its network was set up", Since: since}
	case len(lists) > 0:
		return status.Pod{State: status.StateFailed, Reason: status.CodeNotCalled, Detail: "its network was set up without the plugin, by " + strings.Join(lists, ", "), Since: since}
	case found.Err() != nil:
		return status.Pod{State: status.StateUnknown, Reason: statuscode.Unreadable, Detail: found.Err().Error(), Since: since}
	}
	return status.Pod{State: status.StateUnknown, Reason: statuscode.NoTrace, Detail: "the node has neither an attachment nor a record of the pod", Since: since}
}
