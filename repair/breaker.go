package repair

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Breaker says when deleting would only make more broken pods. The zero value is
// good; see each field.
type Breaker struct {
	// MaxShare is the share of the node's pods that may be broken, of those that
	// check their redirection. Above it the breaker is open. 0 is [DefaultMaxShare];
	// 1 or more never opens.
	MaxShare float64
	// MinBroken is how many pods must be broken for the share to count: of two
	// pods one is half. 0 is [DefaultMinBroken].
	MinBroken int
	// TrialEvery is the time between trials while the share keeps it open: one
	// pod is deleted then, so that a node full of pods that were there before the
	// plugin gets well again, slowly at first. 0 is [DefaultTrialEvery].
	TrialEvery time.Duration
	// Installed returns nil while new pods on the node get their rules, else why
	// not. The breaker is then open, without trials. nil: not known, so assumed.
	Installed func() error

	mu     sync.Mutex
	opened time.Time // or the latest trial
}

// The defaults of a [Breaker].
const (
	DefaultMaxShare   = 0.5
	DefaultMinBroken  = 4
	DefaultTrialEvery = time.Minute
)

// Census is how many of the node's pods check their redirection, and how many of
// them are broken.
type Census struct {
	Candidates, Broken int
}

// Codes for why the breaker is open.
const (
	heldNotInstalled = "plugin-not-ready"
	heldShare        = "too-many-broken"
	heldSuccessor    = "successor-broken"
)

// held is why an action has to wait.
type held struct {
	code, detail string
	wait         time.Duration
}

// installedAgain is how soon to look again for the plugin.
const installedAgain = 10 * time.Second

// check returns nil when the breaker is closed, or when a trial is due: one caller
// then gets it.
func (b *Breaker) check(c Census, now time.Time) *held {
	if b.Installed != nil {
		if err := b.Installed(); err != nil {
			return &held{heldNotInstalled, fmt.Sprintf("the plugin is not ready: %v", err), installedAgain}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.tooMany(c) {
		b.opened = time.Time{}
		return nil
	}
	if b.opened.IsZero() {
		b.opened = now
	}
	every := or(b.TrialEvery, DefaultTrialEvery)
	if wait := every - now.Sub(b.opened); wait > 0 {
		return &held{heldShare, fmt.Sprintf("%d of the node's %d pods in the mesh are broken", c.Broken, c.Candidates), wait}
	}
	b.opened = now
	return nil
}

func (b *Breaker) tooMany(c Census) bool {
	return c.Broken >= or(b.MinBroken, DefaultMinBroken) && float64(c.Broken) > or(b.MaxShare, DefaultMaxShare)*float64(c.Candidates)
}

// or returns v, or the default when v is zero.
func or[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}

// lineage remembers for which owners pods were deleted, to notice that their
// successors are broken as well. It forgets owners after twice lineageMax.
type lineage struct {
	mu     sync.Mutex
	owners map[owner]line
}

// owner is what makes successors of a pod: a sum of the pod's namespace and of its
// owner's UID. The UID alone would not do. It is what the pod's author says, so that
// anybody, in a namespace of his own, could claim another's owner and hold back the
// deletion of its pods. An owner is of its pods' namespace or of none. The sum is
// of a fixed size, which a UID by an author's word is not.
type owner [sha256.Size]byte

type line struct {
	deleted time.Time     // the latest
	wait    time.Duration // before the next one
}

const (
	lineageFirst = time.Minute
	lineageMax   = time.Hour
)

// ownerOf is what makes a successor of the pod; false when nothing does.
func ownerOf(pod *corev1.Pod) (owner, bool) {
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller && o.UID != "" {
			return sha256.Sum256([]byte(pod.Namespace + "/" + string(o.UID))), true
		}
	}
	return owner{}, false
}

// check returns nil unless the pod was first seen after its predecessor was
// deleted for the same fault, not long ago. (Its creation time would not do: that is
// in whole seconds, and a successor is there within a few milliseconds.)
func (l *lineage) check(pod *corev1.Pod, seen, now time.Time) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, owned := ownerOf(pod)
	last, ok := l.owners[of]
	if !owned || !ok || !seen.After(last.deleted) {
		return nil
	}
	if wait := last.wait - now.Sub(last.deleted); wait > 0 {
		return &held{heldSuccessor, fmt.Sprintf("a pod of the same owner was deleted %s ago, and its successor is broken too",
			now.Sub(last.deleted).Round(time.Second)), wait}
	}
	return nil
}

// deleted notes that the pod, first seen then, is deleted now. Each broken successor
// doubles the wait.
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
	last, ok := l.owners[of]
	next := line{now, lineageFirst}
	if ok {
		next.wait = last.wait
	}
	if ok && seen.After(last.deleted) {
		next.wait = min(2*last.wait, lineageMax)
	}
	l.owners[of] = next
}
