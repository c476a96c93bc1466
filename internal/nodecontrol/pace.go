package nodecontrol

import (
	"fmt"
	"time"

	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/program/statuscode"
)

const (
	// freeTurns and freeWrites are how often a pod joins or leaves, and how often its annotation is corrected, without a wait.
	freeTurns, freeWrites = 3, 6
	// paceFirst and paceMost are the first wait after these and the longest; each doubles the one before.
	paceFirst, paceMost = time.Second, 30 * time.Second
	// paceForgets is the quiet time after which there is no wait again.
	paceForgets = time.Minute
)

// pace holds back what happens again and again. The zero pace holds back nothing yet.
type pace struct {
	times  int // since the latest quiet time
	latest time.Time
}

// wait returns how long to wait until the next, of which so many are free; 0: it may be now.
func (p *pace) wait(free int, now time.Time) time.Duration {
	if p.times < free || now.Sub(p.latest) >= paceForgets {
		return 0
	}
	doublings := min(p.times-free, 10) // more than paceMost by far
	return max(0, min(paceFirst<<doublings, paceMost)-now.Sub(p.latest))
}

// count notes that it happened.
func (p *pace) count(now time.Time) {
	if now.Sub(p.latest) >= paceForgets {
		p.times = 0
	}
	p.times++
	p.latest = now
}

// turn returns the time that a pod which joins and leaves again and again has to wait for its next turn; 0: it is followed now. Its deletion is
// followed in any case, and so is the release of all pods.
func (w *work) turn(now time.Time) time.Duration {
	e := w.e
	if w.Choice != machine.In && w.Choice != machine.Out || w.releasing {
		return 0
	}
	if e.followed != machine.Unsure && e.followed != w.Choice {
		if wait := e.turns.wait(freeTurns, now); wait > 0 {
			return wait
		}
		e.turns.count(now)
	}
	e.followed, e.flapping = w.Choice, false
	return 0
}

// flaps leaves a pod as it is that may not take its turn yet. One that is out stays out, and what is left of it goes on leaving; one that
// is in is not looked at, and more is false.
func (c *Controller) flaps(w *work, wait time.Duration) (more bool) {
	e := w.e
	if !e.flapping {
		e.flapping = true
		c.log(w.podOf()).Info("a pod joins and leaves the mesh again and again, so it is followed more slowly", "wait", wait.Round(time.Millisecond).String())
	}
	detail := fmt.Sprintf("the pod joins and leaves the mesh again and again; what it says is followed in %s", wait.Round(100*time.Millisecond))
	if e.followed == machine.Out {
		w.Choice, w.Why, w.detail = machine.Out, statuscode.Flapping, detail
		return true
	}
	c.mu.Lock()
	s := e.state
	c.mu.Unlock()
	if s.State != "" {
		s.Detail = detail
		c.setState(e, s)
	}
	return false
}

// mayTell returns nil if the annotation may be set to a value now. Only what was set before, and did not stay, is held back.
func (w *work) mayTell(value string, now time.Time) error {
	if !w.told(value) || w.releasing || w.Choice == machine.Gone {
		return nil
	}
	if wait := w.e.writes.wait(freeWrites, now); wait > 0 {
		return &heldBack{statuscode.StatusHeld, fmt.Sprintf("the annotation does not stay as it was written; it is written again in %s",
			wait.Round(100*time.Millisecond)), wait}
	}
	return nil
}

// told reports whether the value is what the annotation was last set to.
func (w *work) told(value string) bool { return w.e.toldOn != nil && w.e.told == value }
