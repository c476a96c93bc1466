package inventory

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podid"
)

// is reports whether a row is of the pod. Without a UID one of its addresses must be the pod's: a pod before it may have had the same name.
func (r Row) is(pod *corev1.Pod) bool {
	if r.Pod.UID != "" {
		return r.Pod.UID == string(pod.UID) || podid.Is(pod, r.Pod.Namespace, r.Pod.Name, r.Pod.UID)
	}
	return r.Pod.Namespace == pod.Namespace && r.Pod.Name == pod.Name && r.addressed(pod)
}

// addressed reports whether the pod's status has one of the row's addresses.
func (r Row) addressed(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := netip.ParseAddr(ip.IP)
		return err == nil && slices.Contains(r.Addrs, a)
	})
}

// Sandbox returns what the runtime and the caches say of the pod's present sandbox. A pod may have others: of sandboxes before a
// reboot, say, whose DEL has not come yet. The present one is the one that the runtime names; failing that, the one that has the pod's
// address; failing that, the latest.
func (rows Rows) Sandbox(pod *corev1.Pod) (sandbox Rows) {
	var present Row
	rank := func(r Row) int {
		switch {
		case r.Source == Runtime:
			return 2
		case r.addressed(pod):
			return 1
		}
		return 0
	}
	for _, r := range rows {
		if r.Source == Record || !r.is(pod) {
			continue
		}
		if has, had := rank(r), rank(present); present.ContainerID == "" || has > had || has == had && r.Made.After(present.Made) {
			present = r
		}
	}
	for _, r := range rows {
		if r.Source != Record && present.ContainerID != "" && r.ContainerID == present.ContainerID {
			sandbox = append(sandbox, r)
		}
	}
	return sandbox
}

// Record returns the record that counts for the pod: of its present sandbox, and if that is not known, of the pod; nil: there is none. One
// that says that the pod is redirected wins over others, because a pod may have several attachments, and then the latest does.
func (rows Rows) Record(pod *corev1.Pod) (found *attachment.Record) {
	sandbox := rows.Sandbox(pod)
	for _, row := range rows {
		r := row.Record
		switch {
		case r == nil, len(sandbox) > 0 && r.ContainerID != sandbox[0].ContainerID, len(sandbox) == 0 && (r.Pod.UID == "" || !row.is(pod)):
		case found == nil, r.Selected && !found.Selected, r.Selected == found.Selected && r.Time.After(found.Time):
			found = r
		}
	}
	return found
}
