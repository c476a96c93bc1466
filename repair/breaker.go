package repair

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/budget"
	"github.com/meshcni/meshcni/internal/statuscode"
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

// breaker holds back deletions that would only lead to more broken pods, within a namespace, or on the whole node. Pods are counted by
// namespace, so that one tenant's broken pods hold back no other's; while most namespaces of the node are broken, each has its trials. See
// [Options] for its settings.
type breaker struct {
	limits    *budget.Groups // by namespace
	node      budget.Breaker // counts namespaces
	installed func() error
	confined  func() error

	mu    sync.Mutex
	holds map[string]status.Code // by namespace, what held a deletion back last
}

// census counts the pods that check their redirection, by namespace.
type census map[string]struct{ candidates, broken int }

// check returns nil if a pod of the namespace may be deleted.
func (b *breaker) check(namespace string, pods census, now time.Time) *held {
	h := b.decide(namespace, pods, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if h != nil {
		b.holds[namespace] = h.reason
	} else {
		delete(b.holds, namespace)
	}
	return h
}

func (b *breaker) decide(namespace string, pods census, now time.Time) *held {
	if b.installed != nil {
		if err := b.installed(); err != nil {
			return &held{statuscode.PluginNotReady, fmt.Sprintf("the plugin is not ready: %v", err), heldAgain}
		}
	}
	if b.confined != nil {
		if err := b.confined(); err != nil {
			return &held{statuscode.NotConfined, fmt.Sprintf("deletions are not known to be confined to this node: %v", err), heldAgain}
		}
	}
	all, broken := 0, 0
	for _, n := range pods {
		if n.candidates == 0 {
			continue
		}
		if all++; float64(n.broken) > b.node.MaxShare*float64(n.candidates) {
			broken++
		}
	}
	of, limits := pods[namespace], b.limits.Of(namespace)
	own, node := limits.Trips(of.candidates, of.broken), b.node.Trips(all, broken)
	wait := limits.Let(own || node, now)
	switch {
	case wait == 0:
		return nil
	case own:
		return &held{statuscode.TooManyBroken, fmt.Sprintf("%d of the %d pods in the mesh that the namespace has on the node are broken", of.broken, of.candidates), wait}
	}
	return &held{statuscode.TooManyBroken, fmt.Sprintf("most pods in the mesh are broken in %d of the node's %d namespaces", broken, all), wait}
}

// keep drops what is known of namespaces without pods, and what held back those that have no broken ones any more.
func (b *breaker) keep(pods census) {
	names := make(map[string]bool, len(pods))
	for name := range pods {
		names[name] = true
	}
	b.limits.Keep(names)
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.holds {
		if pods[name].broken == 0 {
			delete(b.holds, name)
		}
	}
}

// holding returns why deletions are held back, in any namespace.
func (b *breaker) holding() map[status.Code]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	reasons := map[status.Code]bool{}
	for _, r := range b.holds {
		reasons[r] = true
	}
	return reasons
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
	next := line{now, lineageFirst}
	if last, ok := l.owners[of]; ok {
		next.wait = last.wait
		if seen.After(last.deleted) {
			next.wait = min(2*last.wait, lineageMax)
		}
	}
	l.owners[of] = next
}
