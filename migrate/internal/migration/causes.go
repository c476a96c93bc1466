package migration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/redirect/trace"
)

// group sums up the differences of a comparison.
func (j *Judge) group(explained explain.Explanation, e Evidence, x explain.Comparison) Group {
	// Nobody's traffic goes otherwise where ours keep apart what theirs may mix up.
	x.ConnectionDifferences = slices.DeleteFunc(x.ConnectionDifferences, func(d compare.ConnectionDifference) bool { return d.Better })
	switch {
	case len(x.Foreign) > 0:
		return unknown(e, "%d of its rules are outside the model, such as %s", len(x.Foreign), x.Foreign[0])
	case x.Same() && e == Live:
		return Group{Verdict: Same, Evidence: e, Cause: "its rules treat every packet and connection as ours would"}
	case x.Same():
		return Group{Verdict: Same, Evidence: e, Cause: "the rules that the settings make treat every packet and connection as ours would"}
	}
	g := Group{Verdict: Differs, Evidence: e}
	var kinds []string
	note := func(kind, example string) {
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
			if len(g.Example) < maxExample {
				g.Example = append(g.Example, example)
			}
		}
	}
	deliberate := func(p trace.Packet) string {
		if j.Plan.mesh.Deliberate == nil {
			return ""
		}
		return j.Plan.mesh.Deliberate(explained.Plan.Redirect, p)
	}
	for _, d := range x.Differences {
		note(cmp.Or(deliberate(d.Packet), kind(d)), d.String())
	}
	for _, d := range x.ConnectionDifferences {
		note(cmp.Or(deliberate(d.Packet), fmt.Sprintf("%s %s connections: %s there, %s here", d.Packet.Direction, d.Packet.Proto, d.A, d.B)), d.String())
	}
	more := ""
	if n := len(kinds) - maxKinds; n > 0 {
		kinds, more = kinds[:maxKinds], fmt.Sprintf("; and %d more kinds", n)
	}
	g.Cause = strings.Join(kinds, "; ") + more
	if e == Model {
		g.Cause = strings.TrimPrefix(g.Cause+j.blame(), "; ")
	}
	return g
}

// kind describes a difference of fates, without addresses.
func kind(d compare.Difference) string {
	port := ""
	if p := d.Packet.Dst.Port(); p != 0 {
		port = fmt.Sprintf(" to port %d", p)
	}
	return fmt.Sprintf("%s %s%s: %s there, %s here", d.Packet.Direction, d.Packet.Proto, port, d.A, d.B)
}

func (j *Judge) blame() string {
	var keys []string
	for _, c := range j.Plan.changed {
		keys = append(keys, c.Key)
	}
	if len(keys) == 0 {
		return ""
	}
	return "; by " + strings.Join(keys, ", ")
}
