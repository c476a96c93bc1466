//go:build linux

package installer

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/meshcni/meshcni/conflist"
)

// conflict distinguishes an owner that rewrites its file now and then, which is normal, from a conflicting writer that
// removes the entry as often as it is added. Adding it ever faster would only make the node's network flap, so the agent
// backs off and reports who it is.
type conflict struct {
	limit  int           // losses within window that make a conflict
	window time.Duration // also how long the entry must then stay for the conflict to be over
	first  time.Duration // first pause
	max    time.Duration // longest pause

	losses []time.Time
	pause  time.Duration // 0: no conflict
	until  time.Time     // no attempt before
	tried  bool          // since then
	report string
}

func newConflict() *conflict {
	return &conflict{limit: 3, window: 15 * time.Second, first: time.Second, max: 5 * time.Minute}
}

// lost records at now that the entry is gone. It reports whether to add it again now, and whether a conflict begins.
func (c *conflict) lost(now time.Time, report func(losses int, over time.Duration) string) (retry, begins bool) {
	if c.pause > 0 {
		switch {
		case now.Before(c.until):
			return false, false
		case !c.tried:
			c.tried = true
			c.losses = []time.Time{now}
			return true, false
		}
		c.pause = min(2*c.pause, c.max)
		c.until, c.tried = now.Add(c.pause), false
		return false, false
	}
	c.losses = append(c.losses, now)
	for len(c.losses) > 0 && now.Sub(c.losses[0]) > c.window {
		c.losses = c.losses[1:]
	}
	if len(c.losses) < c.limit {
		return true, false
	}
	c.pause, c.until, c.tried = c.first, now.Add(c.first), false
	c.report = report(len(c.losses), now.Sub(c.losses[0]))
	return false, true
}

// kept records at now that the entry is in place, and returns how long it must stay for the conflict to be over; 0 when there
// is none.
func (c *conflict) kept(now time.Time) time.Duration {
	if c.pause == 0 {
		return 0
	}
	if len(c.losses) == 0 || now.Sub(c.losses[len(c.losses)-1]) >= c.window {
		c.end()
		return 0
	}
	return c.window - now.Sub(c.losses[len(c.losses)-1])
}

// end forgets the conflict and its losses.
func (c *conflict) end() { c.losses, c.pause, c.report = nil, 0, "" }

// culprit describes the conflicting writer, by what we wrote and what is there now, and what stops it. own says that the file is
// entirely ours.
func culprit(file string, own bool, wrote, found []byte, losses int, over time.Duration) string {
	var b strings.Builder
	in := "all"
	if over > 0 {
		in = over.Round(time.Millisecond).String()
	}
	fmt.Fprintf(&b, "%s: our entry was removed %d times in %s, and pods that start before it is back bypass the mesh; ", file, losses, in)
	if found == nil {
		b.WriteString("the file itself was removed or renamed")
	} else {
		removed, added := diffSize(wrote, found)
		fmt.Fprintf(&b, "the last rewrite took out %d bytes and put in %d", removed, added)
	}
	names := file
	for _, data := range [][]byte{wrote, found} {
		if f, err := conflist.Parse(data); err == nil {
			for _, p := range f.Plugins() {
				names += " " + p.Type
			}
		}
	}
	if strings.Contains(strings.ToLower(names), "cilium") {
		b.WriteString("; set cni.exclusive=false in Cilium's configuration, so that it leaves other plugins alone")
	}
	if !own {
		b.WriteString("; --own-file (chart: cni.ownFile=true) ends it, because the agent then keeps a list of its own, which the runtime loads first")
	}
	b.WriteString("; or find the program that writes it (two chaining agents, or one that wants the file for itself)")
	return b.String()
}

// diffSize returns the size of the differing region in each.
func diffSize(a, b []byte) (removed, added int) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && bytes.HasSuffix(a, b[len(b)-1:]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a), len(b)
}
