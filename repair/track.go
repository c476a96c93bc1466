package repair

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/budget"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/status"
)

// track is the controller's memory of a pod while it exists. After a restart this is lost, which costs a repeated
// event or comparison and nothing more.
type track struct {
	seen       time.Time // first
	looks      budget.Changes
	turn       time.Time // when its namespace's budget allows the next action; zero: it has not been asked
	outcome    status.Code
	reason     status.Code
	repaired   time.Time // when its rules were last seen to be right
	times      int       // how often they were written
	verified   status.Code
	drifted    bool
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
	extentOf   *judge.Judgement     // for which extent was found out
}

type tracks struct {
	mu    sync.Mutex
	byUID map[types.UID]track
}

func (t *tracks) get(uid types.UID) track {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byUID[uid]
}

func (t *tracks) change(uid types.UID, f func(*track)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.byUID[uid]
	f(&k)
	t.byUID[uid] = k
}

// keep drops all pods but those given.
func (t *tracks) keep(pods []*corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := make(map[types.UID]track, len(pods))
	for _, pod := range pods {
		if k, ok := t.byUID[pod.UID]; ok {
			kept[pod.UID] = k
		}
	}
	t.byUID = kept
}
