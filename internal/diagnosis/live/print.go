package live

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// WriteDetails writes what the node has of the pod.
func (p Pod) WriteDetails(w io.Writer) error {
	out := visible.To(w)
	p.print(out)
	return out.Err()
}

func (p Pod) print(w *visible.Printer) {
	is := p.OnNode
	w.Printf("\non node %s\n", cmp.Or(is.Node, "(none)"))
	if is.Unknown != "" {
		w.Printf("  unknown: %s\n", is.Unknown)
	}
	if is.told() {
		p.printState(w)
		if text, _ := p.unwatched(); text != "" {
			w.Printf("  %s\n", text)
		}
	}
	if is.EventsError != "" {
		w.Printf("  its events are not known: %s\n", is.EventsError)
	}
	last := is.last("FailedCreatePodSandBox")
	for i, e := range is.Events {
		if last != nil && e.Reason == last.Reason && &is.Events[i] != last {
			continue // the kubelet says it again each time that it tries
		}
		w.Printf("  event %s %s %s: %s\n", e.Time.Format(time.RFC3339), e.Type, e.Reason, e.Message)
	}
}

func (p Pod) printState(w *visible.Printer) {
	is := p.OnNode
	if s := is.State; s != nil {
		w.Printf("  now: %s: %s", s.State, s.Reason)
		if s.Detail != "" {
			w.Printf(": %s", s.Detail)
		}
		w.Printf("\n")
	} else if !p.started() {
		w.Printf("  now: the pod has no network yet\n")
	} else if is.Unknown == "" {
		w.Printf("  now: the agent does not count the pod among those of the mesh\n")
	}
	for _, r := range is.Records {
		did := "passed over"
		if r.Selected {
			did = fmt.Sprintf("redirected by %s, %d rules", r.Backend, rulesOf(r.InForce()))
		}
		w.Printf("  at %s %s: %s: %s (%s, %s)\n", r.Time.UTC().Format(time.RFC3339), r.By, did, r.Reason, cmp.Or(r.Dialect, "no dialect"), r.IfName)
	}
	if !p.started() {
		return // there is nothing to look at
	}
	if len(is.Records) == 0 {
		w.Printf("  at ADD: there is no record; the plugin was not called for the pod, or its record is gone\n")
	}
	if is.RecordsError != "" {
		w.Printf("  %s\n", is.RecordsError)
	}
	for _, b := range is.Bypasses {
		w.Printf("  %s\n", b)
	}
	if is.BypassError != "" {
		w.Printf("  %s\n", is.BypassError)
	}
	if is.LiveError != "" {
		w.Printf("  live rules: not known: %s\n", is.LiveError)
		if is.Hint != "" {
			w.Printf("  (%s; the agent itself could with the chart's repair.verifyInterval or repair.mode=repair)\n", is.Hint)
		}
		return
	}
	ours := is.ours()
	w.Printf("  live rules: %d of the mesh, %d others\n", ours, len(is.Live)-ours)
	for _, d := range is.Differences {
		kind := "differs since ADD"
		if slices.Contains(is.Lost, d) {
			kind = "LOST since ADD"
		}
		w.Printf("  %s: %s\n", kind, d)
	}
}

func rulesOf(rs ruleset.Ruleset) (n int) {
	for _, f := range ruleset.Families {
		if p := rs.Family(f); p != nil {
			n += p.NumRules()
		}
	}
	return n
}
