package repair

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/budget"
)

// heldReason is a stable code for why deletions are held back.
type heldReason string

const (
	heldNotInstalled heldReason = "plugin-not-ready"
	heldShare        heldReason = "too-many-broken"
	heldSuccessor    heldReason = "successor-broken"
)

// held says why, and how long, a deletion has to wait.
type held struct {
	reason heldReason
	detail string
	wait   time.Duration
}

// installedAgain is when to ask again whether the plugin is ready.
const installedAgain = 10 * time.Second

// breaker holds back deletions that would only lead to more broken pods. See [Options] for its settings.
type breaker struct {
	budget.Breaker

	installed func() error
}

// check returns nil if a pod may be deleted.
func (b *breaker) check(candidates, broken int, now time.Time) *held {
	if b.installed != nil {
		if err := b.installed(); err != nil {
			return &held{heldNotInstalled, fmt.Sprintf("the plugin is not ready: %v", err), installedAgain}
		}
	}
	if wait := b.Check(candidates, broken, now); wait > 0 {
		return &held{heldShare, fmt.Sprintf("%d of the node's %d pods in the mesh are broken", broken, candidates), wait}
	}
	return nil
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
}

const (
	lineageFirst = time.Minute
	lineageMax   = time.Hour
)

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
	of, owned := ownerOf(pod)
	last, ok := l.owners[of]
	if !owned || !ok || !seen.After(last.deleted) {
		return nil
	}
	ago := now.Sub(last.deleted)
	if wait := last.wait - ago; wait > 0 {
		return &held{heldSuccessor, fmt.Sprintf("a pod of the same owner was deleted %s ago, and its successor is broken too", ago.Round(time.Second)), wait}
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
	next := line{now, lineageFirst}
	if last, ok := l.owners[of]; ok {
		next.wait = last.wait
		if seen.After(last.deleted) {
			next.wait = min(2*last.wait, lineageMax)
		}
	}
	l.owners[of] = next
}
