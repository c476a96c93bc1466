//go:build linux

package nodeagent

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// onePer returns the states of all pods, in order, each from the first list that has it as one of its own: who knows a pod as another's, which
// is outside for him, gives way to that one.
func onePer(lists ...[]status.Pod) (all []status.Pod) {
	known := map[string]bool{}
	for _, others := range []bool{false, true} {
		for i, list := range lists {
			for _, p := range list {
				if other := i == 0 && p.State == status.StateOutside; other == others && !known[p.UID] {
					known[p.UID] = true
					all = append(all, p)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all
}

// failing returns the pods that do not start because ADD fails. Pods are those of the node, if they are known: one that has a network
// by now, or has gone, is none of them.
func failing(all []installer.FailingPod, pods func() ([]*corev1.Pod, error)) (states []status.Pod) {
	if len(all) == 0 {
		return nil
	}
	here, err := pods()
	for _, f := range all {
		waits := func(p *corev1.Pod) bool {
			return podid.Is(p, f.Pod.Namespace, f.Pod.Name, f.Pod.UID) && p.DeletionTimestamp == nil && len(p.Status.PodIPs) == 0 && p.Status.Phase == corev1.PodPending
		}
		if err == nil && !slices.ContainsFunc(here, waits) {
			continue
		}
		states = append(states, status.Pod{
			ID: f.Pod, State: status.StateWaiting, Reason: cmp.Or(status.Code(f.Reason), statuscode.AddFailed), Detail: strings.ReplaceAll(f.Error, "\n", "; "), Since: f.At,
		})
	}
	return states
}
