package kubectlcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// onNode is the state of a pod on its node.
type onNode struct {
	Node string `json:"node,omitempty"`
	// Unknown is the reason that the agent has not told. Then nothing below is known but what --enter has read.
	Unknown string `json:"unknown,omitempty"`
	agentapi.Pod
	Events      []event `json:"events"`
	EventsError string  `json:"eventsError,omitempty"`

	selected bool // the pod is in the mesh
	started  bool // it has a network
	hint     bool // --enter could read its rules
}

// event is one of the pod's.
type event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// maxEvents bounds the newest events of the pod that are shown.
const maxEvents = 10

func (c *cluster) onNode(ctx context.Context, s *subject) (is onNode) {
	is.Node, is.Events, is.selected, is.started = s.pod.Spec.NodeName, []event{}, s.explained.Verdict.State == status.StateCaptured, s.started()
	p, err := s.look(ctx, c)
	is.hint = s.enterable() && !s.entered
	if is.Pod = p; err != nil {
		is.Unknown = err.Error()
	}
	events, err := c.events(ctx, s.pod.Namespace, fields.Set{"involvedObject.uid": string(s.pod.UID)})
	if err != nil {
		is.EventsError = err.Error()
	}
	for i := range events {
		if e := &events[i]; e.InvolvedObject.UID == s.pod.UID {
			is.Events = append(is.Events, event{when(e).UTC(), e.Type, e.Reason, e.Message})
		}
	}
	is.Events = is.Events[max(0, len(is.Events)-maxEvents):]
	return is
}

// unwatched reports a pod of the mesh that the agent does not count among those. That ADD has redirected it is enough where nobody can
// look, as it is for the agent.
func (is onNode) unwatched() (text string, exit int) {
	redirected := len(is.Records) > 0 && is.Records[len(is.Records)-1].Selected
	switch {
	case !is.selected || is.State != nil:
	case is.LiveError == "" && is.ours() == 0:
		return "none of the mesh's rules are there: the pod bypasses the mesh", ExitWrong
	case is.LiveError != "" && !redirected:
		return "nothing says whether the pod has its rules", ExitUnknown
	}
	return "", ExitOK
}

// told reports whether the agent, or a pod on the node, has told what is there: both list the records, if only none.
func (is onNode) told() bool { return is.Unknown == "" || is.Records != nil }

// ours counts the live rules that are the mesh's.
func (is onNode) ours() (n int) {
	for _, r := range is.Live {
		if r.Ours {
			n++
		}
	}
	return n
}

func (is onNode) print(w *visible.Printer) {
	w.Printf("\non node %s\n", cmp.Or(is.Node, "(none)"))
	if is.Unknown != "" {
		w.Printf("  unknown: %s\n", is.Unknown)
	}
	if is.told() {
		is.printState(w)
		if text, _ := is.unwatched(); text != "" {
			w.Printf("  %s\n", text)
		}
	}
	if is.EventsError != "" {
		w.Printf("  its events are not known: %s\n", is.EventsError)
	}
	last := is.last("FailedCreatePodSandBox")
	for i, e := range is.Events {
		if last != nil && e.Reason == last.Reason && &is.Events[i] != last {
			continue // the kubelet says it again each time that it tries
		}
		w.Printf("  event %s %s %s: %s\n", e.Time.Format(time.RFC3339), e.Type, e.Reason, e.Message)
	}
}

func (is onNode) printState(w *visible.Printer) {
	if s := is.State; s != nil {
		w.Printf("  now: %s: %s", s.State, s.Reason)
		if s.Detail != "" {
			w.Printf(": %s", s.Detail)
		}
		w.Printf("\n")
	} else if !is.started {
		w.Printf("  now: the pod has no network yet\n")
	} else if is.Unknown == "" {
		w.Printf("  now: the agent does not count the pod among those of the mesh\n")
	}
	for _, r := range is.Records {
		did := "passed over"
		if r.Selected {
			did = fmt.Sprintf("redirected by %s, %d rules", r.Backend, rulesOf(r.InForce()))
		}
		w.Printf("  at %s %s: %s: %s (%s, %s)\n", r.Time.UTC().Format(time.RFC3339), r.By, did, r.Reason, cmp.Or(r.Dialect, "no dialect"), r.IfName)
	}
	if !is.started {
		return // there is nothing to look at
	}
	if len(is.Records) == 0 {
		w.Printf("  at ADD: there is no record; the plugin was not called for the pod, or its record is gone\n")
	}
	if is.RecordsError != "" {
		w.Printf("  %s\n", is.RecordsError)
	}
	if is.LiveError != "" {
		w.Printf("  live rules: not known: %s\n", is.LiveError)
		if is.hint {
			w.Printf("  (%s; the agent itself could with the chart's repair.verifyInterval or repair.mode=repair)\n", enterHint)
		}
		return
	}
	ours := is.ours()
	w.Printf("  live rules: %d of the mesh, %d others\n", ours, len(is.Live)-ours)
	for _, d := range is.Differences {
		kind := "differs since ADD"
		if slices.Contains(is.Lost, d) {
			kind = "LOST since ADD"
		}
		w.Printf("  %s: %s\n", kind, d)
	}
}

func rulesOf(rs ruleset.Ruleset) (n int) {
	for _, f := range ruleset.Families {
		if p := rs.Family(f); p != nil {
			n += p.NumRules()
		}
	}
	return n
}
