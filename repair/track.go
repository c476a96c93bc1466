package repair

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// track is what is remembered of one pod while it exists. Losing it, in a restart,
// costs a repeated event or a repeated comparison and nothing else.
type track struct {
	seen     time.Time // first
	outcome  Outcome
	reason   string
	repaired time.Time // when its rules were last seen to be right
	times    int       // how often they were put there
	verified string    // the latest verification's result
	drifted  bool
}

type tracks struct {
	mu    sync.Mutex
	byUID map[types.UID]*track
}

func (t *tracks) get(uid types.UID) track {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.byUID[uid]; k != nil {
		return *k
	}
	return track{}
}

func (t *tracks) change(uid types.UID, f func(*track)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.byUID[uid]
	if k == nil {
		k = &track{}
		t.byUID[uid] = k
	}
	f(k)
}

func (t *tracks) drop(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byUID, uid)
}

// prune drops all but the pods given: an attempt may have noted something of a pod
// after it was dropped.
func (t *tracks) prune(pods []any) {
	known := make(map[types.UID]bool, len(pods))
	for _, obj := range pods {
		if pod, ok := obj.(*corev1.Pod); ok {
			known[pod.UID] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for uid := range t.byUID {
		if !known[uid] {
			delete(t.byUID, uid)
		}
	}
}

func (t *tracks) countDrifted() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.byUID {
		if k.drifted {
			n++
		}
	}
	return n
}
