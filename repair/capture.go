package repair

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/podid"
	"github.com/meshcni/meshcni/internal/statuscode"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/status"
)

// network is an entry of libcni's cache, of one attachment.
type network struct {
	attachment.ID

	pod    status.ID
	netns  string
	addrs  []netip.Addr
	types  []string  // of the plugins
	made   time.Time // when the file was written
	multus bool      // Multus made it
}

// is reports whether what a runtime or a record calls a pod is the pod. Without a UID one of its addresses must be the pod's:
// a pod before it may have had the same name.
func is(named status.ID, pod *corev1.Pod, addrs []netip.Addr) bool {
	if named.UID != "" {
		return named.UID == string(pod.UID) || podid.Is(pod, named.Namespace, named.Name, named.UID)
	}
	return named.Namespace == pod.Namespace && named.Name == pod.Name && addressed(pod, addrs)
}

// addressed reports whether the pod's status has one of the addresses.
func addressed(pod *corev1.Pod, addrs []netip.Addr) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := netip.ParseAddr(ip.IP)
		return err == nil && slices.Contains(addrs, a)
	})
}

// sandboxOf returns the attachments of the pod's present sandbox. A pod may have others: of sandboxes before a reboot, say,
// whose DEL has not come yet. The present one has the pod's address; failing that, it is the latest.
func sandboxOf(pod *corev1.Pod, networks []network) (sandbox []network) {
	var present network
	for _, n := range networks {
		if !is(n.pod, pod, n.addrs) {
			continue
		}
		has, had := addressed(pod, n.addrs), addressed(pod, present.addrs)
		if present.ContainerID == "" || has && !had || has == had && n.made.After(present.made) {
			present = n
		}
	}
	for _, n := range networks {
		if present.ContainerID != "" && n.ContainerID == present.ContainerID {
			sandbox = append(sandbox, n)
		}
	}
	return sandbox
}

// recordOf returns the record that counts for the pod: of its present sandbox, and if that is not known, of the pod. One that
// says that the pod is redirected wins over others, because a pod may have several attachments, and then the latest does.
func recordOf(pod *corev1.Pod, sandbox []network, records []attachment.Record) (found attachment.Record, ok bool) {
	for _, r := range records {
		switch {
		case len(sandbox) > 0 && r.ContainerID != sandbox[0].ContainerID, len(sandbox) == 0 && (r.Pod.UID == "" || !is(r.Pod, pod, nil)):
		case !ok, r.Selected && !found.Selected, r.Selected == found.Selected && r.Time.After(found.Time):
			found, ok = r, true
		}
	}
	return found, ok
}

// traces are a node's files about its pods' attachments.
type traces struct {
	networks []network
	records  []attachment.Record
	err      error // what of it cannot be read
}

// judge tells whether a pod in the mesh was captured. Types are those under which the plugin is called.
func (t traces) judge(pod *corev1.Pod, types []string) status.Pod {
	sandbox := sandboxOf(pod, t.networks)
	record, recorded := recordOf(pod, sandbox, t.records)
	var since time.Time
	var lists []string
	ours, delegated, multus, blank := false, false, false, false
	for _, n := range sandbox {
		since = n.made
		ours = ours || slices.ContainsFunc(n.types, func(typ string) bool { return slices.Contains(types, typ) })
		delegated = delegated || slices.ContainsFunc(n.types, func(typ string) bool { return strings.HasPrefix(typ, "multus") })
		multus, blank = multus || n.multus, blank || len(n.types) == 0
		lists = append(lists, fmt.Sprintf("%s (%s)", n.Network, strings.Join(n.types, ", ")))
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
	case len(sandbox) > 0:
		return status.Pod{State: status.StateFailed, Reason: status.CodeNotCalled, Detail: "its network was set up without the plugin, by " + strings.Join(lists, ", "), Since: since}
	case t.err != nil:
		return status.Pod{State: status.StateUnknown, Reason: statuscode.Unreadable, Detail: t.err.Error(), Since: since}
	}
	return status.Pod{State: status.StateUnknown, Reason: statuscode.NoTrace, Detail: "the node has neither an attachment nor a record of the pod", Since: since}
}
