package repair

import (
	"crypto/sha256"
	"fmt"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// held is the reason why a deletion has to wait, and the time.
type held struct {
	reason status.Code
	detail string
	wait   time.Duration
}

// heldAgain is the wait before it is asked again whether the plugin is ready and the API server confines our deletions to this node, which takes
// no request.
const heldAgain = 2 * time.Second

// holds holds back deletions that would only lead to more broken pods, or that nothing confines to the node.
type holds struct {
	installed, confined func() error // nil: always

	mu  sync.Mutex
	now status.Code // what held the last deletion back; empty: nothing
}

// check returns nil if pods may be deleted.
func (h *holds) check() *held {
	found := h.decide()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = ""
	if found != nil {
		h.now = found.reason
	}
	return found
}

func (h *holds) decide() *held {
	if h.installed != nil {
		if err := h.installed(); err != nil {
			return &held{statuscode.PluginNotReady, fmt.Sprintf("the plugin is not ready: %v", err), heldAgain}
		}
	}
	if h.confined != nil {
		if err := h.confined(); err != nil {
			return &held{statuscode.NotConfined, fmt.Sprintf("deletions are not known to be confined to this node: %v", err), heldAgain}
		}
	}
	return nil
}

// holding returns what holds deletions back, of which there are any only while pods are broken.
func (h *holds) holding(broken bool) status.Code {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !broken {
		h.now = ""
	}
	return h.now
}

// lineage remembers for which owners pods were deleted, to notice broken successors. It forgets an owner after twice
// lineageMax.
type lineage struct {
	mu     sync.Mutex
	owners map[owner]line
}

// owner identifies what replaces a pod, by a hash of the pod's namespace and its owner's UID. The UID alone would not
// do: the pod's author sets it, and could claim another namespace's owner to hold back the deletion of its pods. The hash
// bounds the size of what an author sets.
type owner [sha256.Size]byte

type line struct {
	deleted time.Time     // the latest
	wait    time.Duration // before the next
	backoff wait.Backoff  // of the waits after that
}

// lineageMax is the longest wait.
const lineageMax = time.Hour

// firstLine is that of an owner of whom no pod was deleted.
func firstLine() (l line) {
	l.backoff = wait.Backoff{Duration: time.Minute, Factor: 2, Steps: math.MaxInt, Cap: lineageMax}
	l.wait = l.backoff.Step()
	return l
}

// ownerOf returns what replaces the pod, and false if nothing does.
func ownerOf(pod *corev1.Pod) (owner, bool) {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil || o.UID == "" {
		return owner{}, false
	}
	return sha256.Sum256([]byte(pod.Namespace + "/" + string(o.UID))), true
}

// check returns nil unless the pod was first seen after its predecessor was deleted for the same fault, not long ago.
// (Creation times would not do: they are in whole seconds, and a successor appears within milliseconds.)
func (l *lineage) check(pod *corev1.Pod, seen, now time.Time) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	owner, owned := ownerOf(pod)
	last, ok := l.owners[owner]
	if !owned || !ok || !seen.After(last.deleted) {
		return nil
	}
	ago := now.Sub(last.deleted)
	if wait := last.wait - ago; wait > 0 {
		return &held{statuscode.SuccessorBroken, fmt.Sprintf("a pod of the same owner was deleted %s ago, and its successor is broken too", ago.Round(time.Second)), wait}
	}
	return nil
}

// deleted notes that a pod, first seen at a time, is deleted now. Each broken successor doubles the wait.
func (l *lineage) deleted(pod *corev1.Pod, seen, now time.Time) {
	of, owned := ownerOf(pod)
	if !owned {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owners == nil {
		l.owners = map[owner]line{}
	}
	for k, o := range l.owners {
		if now.Sub(o.deleted) > 2*lineageMax {
			delete(l.owners, k)
		}
	}
	next, ok := l.owners[of]
	switch {
	case !ok:
		next = firstLine()
	case seen.After(next.deleted):
		next.wait = next.backoff.Step()
	}
	next.deleted = now
	l.owners[of] = next
}
