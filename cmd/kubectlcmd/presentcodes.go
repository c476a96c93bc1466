package kubectlcmd

import (
	"io"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/visible"
)

// presentCode is the kind of a [present], which never changes.
type presentCode string

// The codes.
const (
	nowCaptured    presentCode = "captured"          // it is
	nowOutside     presentCode = "outside"           // it is not, and is not to be
	nowEnding      presentCode = "ending"            // it is being deleted
	nowUnscheduled presentCode = "unscheduled"       // it is on no node
	nowRefused     presentCode = "refused"           // it does not start with its settings
	nowWouldRefuse presentCode = "would-be-refused"  // it runs, and would not start again
	nowNoAgent     presentCode = "no-agent"          // its node has none
	nowSilent      presentCode = "agent-silent"      // the agent of its node does not answer
	nowNotChained  presentCode = "not-installed"     // no network configuration has the plugin's entry
	nowNetwork     presentCode = "network-failed"    // its network could not be set up
	nowStarting    presentCode = "starting"          // its network is not set up yet
	nowLost        presentCode = "rules-lost"        // rules are gone or others
	nowBypassing   presentCode = "bypassing"         // it has no rules
	nowWaiting     presentCode = "waiting"           // it is to be captured, and is not yet
	nowUnknown     presentCode = "unknown"           // nothing says whether it has its rules
	nowExcluded    presentCode = "excluded-injected" // it has a proxy, and its namespace is excluded
	nowOther       presentCode = "other-dialect"     // it is of a mesh that the plugin of its node does not know
	nowNotRunning  presentCode = "not-running"       // a container of it does not run
)

// presentCodes are all codes, as the page has them.
var presentCodes = []presentCode{
	nowCaptured, nowOutside, nowEnding, nowUnscheduled, nowRefused, nowWouldRefuse, nowNoAgent, nowSilent, nowNotChained, nowNetwork, nowStarting, nowLost,
	nowBypassing, nowWaiting, nowUnknown, nowExcluded, nowOther, nowNotRunning,
}

// present is the pod's current state, by everything that the cluster tells, and its root cause, if there is any trouble.
type present struct {
	Code     presentCode `json:"code"`
	Sentence string      `json:"sentence"`
	Because  []string    `json:"because,omitempty"`
	Do       []string    `json:"do"`
	exit     int
}

// trouble reports whether something is to be said before what should be.
func (p present) trouble() bool { return p.Code != nowCaptured && p.Code != nowOutside }

// print writes how the pod is, and what should be.
func (p present) print(w io.Writer, v explain.Verdict) error {
	out := visible.To(w)
	if !p.trouble() {
		if p.Code == nowCaptured {
			v.Sentence, v.Because = p.Sentence, p.Because
		}
		_, err := v.WriteTo(w)
		return err
	}
	if _, err := (explain.Verdict{Sentence: p.Sentence, Because: p.Because, Do: p.Do}).WriteTo(w); err != nil {
		return err
	}
	if v.Sentence == "" || p.Code == nowRefused || p.Code == nowWouldRefuse || p.Code == nowExcluded || p.Code == nowOther || p.Sentence == v.Sentence {
		return nil // that is what has just been said
	}
	out.Printf("\nBy its settings: %s\n", v.Sentence) // the rest of the verdict is no matter while this is so
	if v.State == explain.Refused {
		for _, because := range v.Because {
			out.Printf("  %s\n", because)
		}
	}
	return out.Err()
}
