//go:build linux

package nodeagent

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/podid"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/repair"
)

// captureStates are the words of people's programs for what detection and verification found. A pod without its rules stays so
// until somebody starts it anew; what cannot be told may be told later.
var captureStates = map[string]agentsock.State{
	string(repair.Captured):   agentsock.Captured,
	string(repair.Uncaptured): agentsock.Failed,
	string(repair.CannotTell): agentsock.Waiting,
	repair.StateDrifted:       agentsock.Drifted,
	repair.StateOutside:       agentsock.Outside,
}

// unknowns are the reasons of pods of which nothing on the node says whether they have their rules. They are no news to anybody
// who runs Multus or keeps libcni's cache elsewhere.
var unknowns = []string{
	string(repair.CaptureNoTrace), string(repair.CaptureUnreadable), string(repair.CaptureDelegated), string(repair.CaptureNamespace),
	string(repair.CaptureTooLarge),
}

// merge returns the states of all pods: those with rules of their own, and those that the node's proxy has or is to have. Both
// know the pods of the other as outside.
func merge(own []repair.PodStatus, proxied []agentsock.PodState) []agentsock.PodState {
	all := make([]agentsock.PodState, 0, len(own)+len(proxied))
	known := map[string]bool{}
	for _, p := range proxied {
		if p.State != agentsock.Outside {
			known[p.UID] = true
			all = append(all, p)
		}
	}
	for _, p := range own {
		if known[p.UID] {
			continue
		}
		s := agentsock.PodState{
			Pod:     attachment.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Dialect: p.Dialect, State: captureStates[p.State], Reason: p.Reason, Detail: p.Detail, Since: p.Since, Backend: p.Backend,
		}
		if p.State == repair.StateDrifted {
			s.Reason = "rules"
		}
		known[p.UID] = true
		all = append(all, s)
	}
	for _, p := range proxied {
		if p.State == agentsock.Outside && !known[p.UID] {
			all = append(all, p)
		}
	}
	sortPods(all)
	return all
}

// withFailing adds the pods that do not start because ADD fails. Pods are those of the node, if they are known: one that has a network
// by now, or has gone, is none of them.
func withFailing(all []agentsock.PodState, failing []installer.FailingPod, pods func() ([]*corev1.Pod, error)) []agentsock.PodState {
	if len(failing) == 0 {
		return all
	}
	here, err := pods()
	for _, f := range failing {
		waits := func(p *corev1.Pod) bool {
			return podid.Is(p, f.Pod.Namespace, f.Pod.Name, f.Pod.UID) && p.DeletionTimestamp == nil && len(p.Status.PodIPs) == 0 && p.Status.Phase == corev1.PodPending
		}
		known := func(s agentsock.PodState) bool { return s.UID == f.Pod.UID }
		if err == nil && !slices.ContainsFunc(here, waits) || slices.ContainsFunc(all, known) {
			continue
		}
		all = append(all, agentsock.PodState{
			Pod: f.Pod, State: agentsock.Waiting, Reason: cmp.Or(f.Reason, string(plugin.AddFailed)), Detail: strings.ReplaceAll(f.Error, "\n", "; "), Since: f.At,
		})
	}
	sortPods(all)
	return all
}

func sortPods(all []agentsock.PodState) {
	slices.SortFunc(all, func(a, b agentsock.PodState) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// NeedsAttention reports whether somebody should look after a pod.
func NeedsAttention(p agentsock.PodState) bool {
	switch p.State {
	case agentsock.Captured:
		return false
	case agentsock.Outside:
		return p.Reason == repair.ReasonOtherDialect
	case agentsock.Waiting:
		return !slices.Contains(unknowns, p.Reason)
	}
	return true
}
