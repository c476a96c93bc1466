//go:build linux

package nodecmd

import (
	"cmp"
	"slices"

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
	slices.SortFunc(all, func(a, b agentsock.PodState) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all
}

// wrong reports whether a pod needs somebody's attention.
func wrong(p agentsock.PodState) bool {
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
