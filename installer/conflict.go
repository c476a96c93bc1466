//go:build linux

package installer

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/meshcni/meshcni/conflist"
)

// contest holds the rules of a conflict: from when on there is one, and the answer to it.
type contest struct {
	limit  int           // losses within window that make a conflict
	window time.Duration // also how long the entry must then stay for the conflict to be over
	first  time.Duration // first pause
	max    time.Duration // longest pause
}

var usualContest = contest{limit: 3, window: 15 * time.Second, first: time.Second, max: 5 * time.Minute}

// conflict distinguishes an owner that rewrites its file now and then, which is normal, from a conflicting writer that
// removes the entry as often as it is added. Adding it ever faster would only make the node's network flap, so the agent
// backs off and reports who it is.
type conflict struct {
	contest

	losses []time.Time
	pause  time.Duration // 0: no conflict
	until  time.Time     // no attempt before
	tried  bool          // since then
	report string
}

// lost records at now that the entry is gone. It reports whether to add it again now, and whether a conflict begins; with certain, at
// the first loss.
func (c *conflict) lost(now time.Time, certain bool, report func(losses int, over time.Duration) string) (retry, begins bool) {
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
	if len(c.losses) < c.limit && !certain {
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
// entirely ours, alone that Cilium has just renamed it.
func culprit(file string, own, alone bool, wrote, found []byte, losses int, over time.Duration) string {
	in := "all"
	if over > 0 {
		in = over.Round(time.Millisecond).String()
	}
	said := fmt.Sprintf("%s: our entry was removed %d times in %s, and pods that start before it is back bypass the mesh", file, losses, in)
	names, delegates := file, ""
	for _, data := range [][]byte{wrote, found} {
		if f, err := conflist.Parse(data); err == nil {
			for _, p := range f.Plugins() {
				names += " " + p.Type
			}
			delegates = cmp.Or(delegates, delegating(f))
		}
	}
	if alone || strings.Contains(strings.ToLower(names), "cilium") {
		return said + "; set cni.exclusive=false in Cilium's values: Cilium wants the directory of network configurations for itself, as is its default"
	}
	how := "the file itself was removed or renamed"
	if found != nil {
		removed, added := diffSize(wrote, found)
		how = fmt.Sprintf("the last rewrite took out %d bytes and put in %d", removed, added)
	}
	switch { // what to do comes first, since what follows may be cut
	case delegates != "":
		return fmt.Sprintf("%s; see why %s starts so often, since it writes its file at each start: %s", said, delegates, how)
	case own:
		return said + "; have the program that removes it leave others' files alone (Cilium: cni.exclusive=false), or remove it, if it is a second agent of this kind: " + how
	}
	return said + "; set --own-file (chart: cni.ownFile=true), with which the agent keeps a list of its own that the runtime loads first, " +
		"or find the program that writes it (two chaining agents, or one that wants the file for itself): " + how
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
