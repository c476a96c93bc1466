package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/status"
)

// track is the controller's memory of a pod while it exists. After a restart this is lost, which costs a repeated
// event or comparison and nothing more.
type track struct {
	seen       time.Time // first
	turn       time.Time // when its namespace's budget allows the next action; zero: it has not been asked
	outcome    status.Code
	reason     status.Code
	repaired   time.Time // when its rules were last seen to be right
	times      int       // how often they were written
	verified   status.Code
	drifted    bool
	due        bool                 // its rules are to be verified
	wrote      bool                 // its rules were written by an attempt that took too long, of which nothing was reported
	seenIn     sight                // what detection last saw of it
	capture    status.Pod           // what was last said of that
	extent     status.Pod           // what its rules leave out of it, if it is captured; zero: no direction
	past       []dialect.Bypass     // that its packets were last seen to take, past all rules
	dialect    string               // the mesh that has it, when it was last looked at
	lost       bool                 // see Detection.Lost
	other      string               // the mesh that has it and is not configured
	told       status.Code          // that an event was sent for
	uncaptured status.Code          // of when it was last found so
	bypasses   []dialect.BypassCode // that events were sent for
	report     Bypasses             // that was not told yet, with the time
	reported   time.Time
	extentOf   *judge.Judgement // for which extent was found out
}

// track returns what is remembered of a pod.
func (c *Controller) track(pod *corev1.Pod) track { return c.tracks.Get(c.source.RuntimeUID(pod)) }

// note changes it.
func (c *Controller) note(pod *corev1.Pod, change func(*track)) {
	c.tracks.Change(c.source.RuntimeUID(pod), change)
}
