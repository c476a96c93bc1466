//go:build linux

package installer

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/meshcni/meshcni/conflist"
)

// fight tells an owner that rewrites its file now and then, which is normal, from one that takes our entry out as often as
// we put it in. Putting it in ever faster would then only make the node's network flap: so it backs off and says who.
//
// All times are arguments. The zero value is peace, with the limits of newFight.
type fight struct {
	limit  int           // losses within window that make a fight
	window time.Duration // also how long the entry must then survive for peace
	first  time.Duration // first pause
	max    time.Duration // longest pause

	losses []time.Time
	pause  time.Duration // 0: peace
	until  time.Time     // no attempt before
	tried  bool          // since then
	report string
}

func newFight() *fight {
	return &fight{limit: 5, window: 30 * time.Second, first: time.Second, max: 5 * time.Minute}
}

// lost notes at now that the entry is not where it was put. It tells whether to put it back now, and whether this is the
// moment at which a fight begins.
func (f *fight) lost(now time.Time, report func(losses int, over time.Duration) string) (retry, begins bool) {
	if f.pause > 0 {
		switch {
		case now.Before(f.until):
			return false, false
		case !f.tried:
			f.tried = true
			f.losses = []time.Time{now}
			return true, false
		}
		f.pause = min(2*f.pause, f.max)
		f.until, f.tried = now.Add(f.pause), false
		return false, false
	}
	f.losses = append(f.losses, now)
	for len(f.losses) > 0 && now.Sub(f.losses[0]) > f.window {
		f.losses = f.losses[1:]
	}
	if len(f.losses) < f.limit {
		return true, false
	}
	f.pause, f.until, f.tried = f.first, now.Add(f.first), false
	f.report = report(len(f.losses), now.Sub(f.losses[0]))
	return false, true
}

// kept notes at now that the entry is in place, and tells when to look again for peace to be declared (zero: it is).
func (f *fight) kept(now time.Time) time.Duration {
	if f.pause == 0 {
		return 0
	}
	if len(f.losses) == 0 || now.Sub(f.losses[len(f.losses)-1]) >= f.window {
		f.losses, f.pause, f.report = nil, 0, ""
		return 0
	}
	return f.window - now.Sub(f.losses[len(f.losses)-1])
}

// culprit describes, from what we wrote and what is there now, who wrote and what might stop it.
func culprit(file string, wrote, found []byte, losses int, over time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: our entry was removed %d times in %s; ", file, losses, over.Round(time.Millisecond))
	switch {
	case found == nil:
		b.WriteString("the file itself was removed or renamed")
	default:
		removed, added := diffSize(wrote, found)
		fmt.Fprintf(&b, "the last rewrite took out %d bytes and put in %d", removed, added)
	}
	var types []string
	for _, data := range [][]byte{wrote, found} {
		if f, err := conflist.Parse(data); err == nil {
			for _, p := range f.Plugins() {
				types = append(types, p.Type)
			}
		}
	}
	if strings.Contains(strings.ToLower(file+strings.Join(types, " ")), "cilium") {
		b.WriteString("; set cni.exclusive=false in Cilium's configuration, so that it leaves other plugins alone")
	} else {
		b.WriteString("; find the agent that writes it (two chaining agents, or one that wants the file for itself), or use --own-file")
	}
	return b.String()
}

// diffSize is the size of the region that differs.
func diffSize(a, b []byte) (removed, added int) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && bytes.HasSuffix(a, b[len(b)-1:]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a), len(b)
}
