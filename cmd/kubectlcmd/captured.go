package kubectlcmd

import (
	"fmt"
	"strings"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// atStart is the content of the plugin's record of a pod.
const atStart = "the plugin wrote its rules when it started"

// capturedBy says by what it is known that a pod is captured, for each reason that the agent gives.
var capturedBy = map[string]string{
	"recorded":     atStart,
	"attached":     "the plugin was called when it started",
	"check-passed": "the mesh's own check in the pod has passed",
	"verified":     "the agent has compared its rules",
}

// captured says that a pod is captured, and how much of that has been seen.
func (s *subject) captured(is onNode) present {
	looked := is.LiveError == "" && is.ours() > 0
	by := atStart
	switch st := is.State; {
	case looked:
		by = "its rules are there"
	case st != nil && capturedBy[st.Reason] != "":
		by = capturedBy[st.Reason]
	case st != nil:
		by = "the agent of its node says so: " + st.Reason
	}
	some, rest, cut := strings.Cut(strings.TrimSuffix(s.explained.Verdict.Sentence, "."), ": ")
	if !cut {
		rest = some
	}
	p := present{Code: nowCaptured, Sentence: fmt.Sprintf("This pod is captured (%s): %s.", by, rest), Do: []string{}}
	if is.LiveError != "" && (is.State == nil || is.State.State == agentapi.Captured && is.State.Reason != "verified") {
		p.Because = []string{"Whether its rules are still there was not looked at, since the agent may not enter pods"}
		if is.hint {
			p.Because[0] += "; " + enterHint
		}
	}
	return p
}
