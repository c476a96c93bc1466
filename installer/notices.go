//go:build linux

package installer

import (
	"slices"
	"strings"
	"time"
)

// Notice is news about the node, for people who do not read the agent's log; see [Options].Notify.
type Notice struct {
	// Code is the kind of the news: that of a [BlockedError], or one of the NoticeCodes below, or another program's own.
	Code NoticeCode
	// Warning says that something is wrong. Otherwise something is over, or has been done about it.
	Warning bool
	// Text is a sentence, with the remedy.
	Text string
}

// NoticeCode is a stable code of a [Notice].
type NoticeCode string

// The codes that are not those of a [BlockedError].
const (
	noticeReady         NoticeCode = "ready"           // after a Blocked: new pods are captured again
	noticeOwnFileTaken  NoticeCode = "own-file-taken"  // the entry was fought over, so the agent keeps a file of its own
	noticeOtherMesh     NoticeCode = "other-mesh"      // there is a Neighbour
	noticeOtherMeshGone NoticeCode = "other-mesh-gone" // and no longer
	noticeConfigRefused NoticeCode = "config-refused"  // the configuration that Reload has found is refused
)

// remindAfter is the wait until a notice of what is still wrong is repeated. Kubernetes forgets an event after an hour by default
// (kube-apiserver --event-ttl).
const remindAfter = 30 * time.Minute

// notices finds out what is news.
type notices struct {
	send   func(Notice)
	moment time.Duration // how long a reason must last to be news
	open   map[subject]*trouble
	told   []string // the codes of Blocked that have been told of since the agent was ready

	refused string // why the configuration that is there is refused; empty: it is not
}

// subject is the subject of a notice.
type subject struct {
	code NoticeCode
	// plugin is the type of a Neighbour; empty for other codes.
	plugin string
}

// trouble holds the present faults.
type trouble struct{ since, told time.Time }

// unremarkable are reasons that are no news: what comes with every start and every upgrade.
var unremarkable = []Code{codeStarting, codeSuperseded}

// update tells what has come and what is over at now. It returns after which time to call it again; 0 if there is no need.
func (n *notices) update(now time.Time, blocked []*BlockedError, neighbours []Neighbour) (wait time.Duration) {
	wrong := map[subject]bool{}
	look := func(key subject, after time.Duration, notice Notice) {
		if wrong[key] {
			return
		}
		wrong[key] = true
		t := n.open[key]
		if t == nil {
			t = &trouble{since: now}
			n.open[key] = t
		}
		due := t.since.Add(after)
		if !t.told.IsZero() {
			due = t.told.Add(remindAfter)
		}
		if !now.Before(due) {
			notice.Warning = true
			n.send(notice)
			t.told, due = now, now.Add(remindAfter)
		}
		wait = soonest(wait, due.Sub(now))
	}
	for _, b := range blocked {
		if slices.Contains(unremarkable, b.Code) {
			continue
		}
		after := n.moment
		if b.Code == codeConflict { // has lasted already
			after = 0
		}
		about := subject{code: NoticeCode(b.Code)}
		look(about, after, Notice{Code: about.code, Text: "not ready: " + b.Err.Error()})
		if !n.open[about].told.IsZero() && !slices.Contains(n.told, string(b.Code)) {
			n.told = append(n.told, string(b.Code))
		}
	}
	if n.refused != "" {
		look(subject{code: noticeConfigRefused}, 0, Notice{Code: noticeConfigRefused, Text: "the changed configuration is refused, and the one before it is in force: " + n.refused})
	}
	for _, other := range neighbours {
		look(subject{noticeOtherMesh, other.Plugin}, 0, Notice{Code: noticeOtherMesh, Text: other.Text()})
	}
	for key := range n.open {
		if key.code == noticeOtherMesh && !wrong[key] {
			n.send(Notice{Code: noticeOtherMeshGone, Text: key.plugin + " is no longer chained with our plugin; delete the pods that started with both"})
		}
		if !wrong[key] {
			delete(n.open, key)
		}
	}
	if len(blocked) == 0 && len(n.told) > 0 {
		n.send(Notice{Code: noticeReady, Text: "every new pod of the mesh is captured again; it was: " + strings.Join(n.told, ", ")})
		n.told = nil
	}
	return wait
}
