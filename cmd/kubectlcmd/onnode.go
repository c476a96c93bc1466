package kubectlcmd

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/diagnosis/live"
)

// maxEvents bounds the newest events of the pod that are shown.
const maxEvents = 10

// live is the pod with all that is known of it.
func (c *cluster) live(ctx context.Context, s *subject) live.Pod {
	is := live.OnNode{Node: s.pod.Spec.NodeName, Events: []live.Event{}}
	p, err := s.look(ctx, c)
	if s.enterable() && !s.entered {
		is.Hint = kubectl.EnterHint
	}
	is.Pod = p
	if err != nil {
		is.Unknown = err.Error()
	}
	events, err := c.events(ctx, s.pod.Namespace, fields.Set{"involvedObject.uid": string(s.pod.UID)})
	if err != nil {
		is.EventsError = err.Error()
	}
	for i := range events {
		if e := &events[i]; e.InvolvedObject.UID == s.pod.UID {
			is.Events = append(is.Events, live.Event{Time: when(e).UTC(), Type: e.Type, Reason: e.Reason, Message: e.Message})
		}
	}
	is.Events = is.Events[max(0, len(is.Events)-maxEvents):]
	return s.live(is)
}

// live is the pod with what its node has of it.
func (s *subject) live(is live.OnNode) live.Pod {
	p := live.Pod{
		Pod: s.pod, Namespace: s.namespace, Identity: s.product, Explained: s.explained, Undecided: s.undecided,
		Asking: s.asking, Node: s.node, Agent: types.NamespacedName{Namespace: s.agent.Namespace, Name: s.agent.Name}, AgentLabels: s.selector, OnNode: is,
	}
	if s.deciding != nil {
		p.Meshes = s.deciding.meshes
	}
	return p
}

// exits are the program's, for scripts.
var exits = map[live.Health]int{live.Well: exitOK, live.Wrong: exitWrong, live.Unsure: exitUnknown}

// exit is the program's end after it has told how a pod is; nil: nothing is wrong.
func exit(h live.Health) error {
	if h == live.Well {
		return nil
	}
	return cli.Exit(exits[h])
}
