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

// merge returns the states of all pods: those with rules of their own, and those that the node's proxy has or is to have. Both
// know the pods of the other as outside.
func merge(own, proxied []status.Pod) []status.Pod {
	all := make([]status.Pod, 0, len(own)+len(proxied))
	known := map[string]bool{}
	for _, p := range proxied {
		if p.State != status.StateOutside {
			known[p.UID] = true
			all = append(all, p)
		}
	}
	for _, p := range own {
		if !known[p.UID] {
			known[p.UID] = true
			all = append(all, p)
		}
	}
	for _, p := range proxied {
		if p.State == status.StateOutside && !known[p.UID] {
			all = append(all, p)
		}
	}
	sortPods(all)
	return all
}

// withFailing adds the pods that do not start because ADD fails. Pods are those of the node, if they are known: one that has a network
// by now, or has gone, is none of them.
func withFailing(all []status.Pod, failing []installer.FailingPod, pods func() ([]*corev1.Pod, error)) []status.Pod {
	if len(failing) == 0 {
		return all
	}
	here, err := pods()
	for _, f := range failing {
		waits := func(p *corev1.Pod) bool {
			return podid.Is(p, f.Pod.Namespace, f.Pod.Name, f.Pod.UID) && p.DeletionTimestamp == nil && len(p.Status.PodIPs) == 0 && p.Status.Phase == corev1.PodPending
		}
		known := func(s status.Pod) bool { return s.UID == f.Pod.UID }
		if err == nil && !slices.ContainsFunc(here, waits) || slices.ContainsFunc(all, known) {
			continue
		}
		all = append(all, status.Pod{
			ID: f.Pod, State: status.StateWaiting, Reason: cmp.Or(status.Code(f.Reason), statuscode.AddFailed), Detail: strings.ReplaceAll(f.Error, "\n", "; "), Since: f.At,
		})
	}
	sortPods(all)
	return all
}

func sortPods(all []status.Pod) {
	slices.SortFunc(all, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}
