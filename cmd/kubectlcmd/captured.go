package kubectlcmd

import (
	"fmt"
	"strings"

	"github.com/meshcni/meshcni/status"
)

// captured says that a pod is captured, and how much of that has been seen.
func (s *subject) captured(is onNode) present {
	looked := is.LiveError == "" && is.ours() > 0
	by := status.Pod{State: status.StateCaptured, Reason: status.CodeRecorded}.Row().Sentence
	switch st := is.State; {
	case looked:
		by = "its rules are there"
	case st != nil && st.Row().Code != "":
		by = st.Row().Sentence
	case st != nil:
		by = "the agent of its node says so: " + string(st.Reason)
	}
	some, rest, cut := strings.Cut(strings.TrimSuffix(s.explained.Verdict.Sentence, "."), ": ")
	if !cut {
		rest = some
	}
	p := present{Code: status.CodeCaptured, Sentence: fmt.Sprintf("This pod is captured (%s): %s.", by, rest), Do: []string{}}
	if is.LiveError != "" && (is.State == nil || is.State.State == status.StateCaptured && is.State.Reason != "verified") {
		p.Because = []string{"Whether its rules are still there was not looked at, since the agent may not enter pods"}
		if is.hint {
			p.Because[0] += "; " + enterHint
		}
	}
	return p
}
