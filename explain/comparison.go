package explain

import (
	"context"
	"errors"
	"io"

	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Comparison is the output of compare, as JSON.
type Comparison struct {
	Pod      PodName `json:"pod"`
	Dialect  string  `json:"dialect"`
	Selected bool    `json:"selected"`
	compare.Report
	Foreign ruleset.Live `json:"foreign,omitempty"`
	// NotCompared lists the parts that a comparison does not see.
	NotCompared []string `json:"notCompared"`
	// Configuration is the origin of the settings.
	Configuration Configuration `json:"configuration"`

	unselected string // why the pod is not in the mesh
}

// Same reports whether no difference was found.
func (c Comparison) Same() bool {
	return len(c.Differences)+len(c.ConnectionDifferences)+len(c.Foreign) == 0
}

// WriteTo writes the comparison for people. The other rules are the saved ones.
func (c Comparison) WriteTo(w io.Writer) (int64, error) {
	out := visible.To(w)
	if !c.Selected {
		out.Printf("pod %s is not in the mesh: %s; ours are no rules\n", c.Pod, c.unselected)
	}
	if len(c.Foreign) > 0 {
		out.Text((&ruleset.ForeignError{Rules: c.Foreign}).Error() + "\n")
		return out.Written(), out.Err()
	}
	for _, d := range c.Differences {
		out.Printf("%s: %s\n  saved  %s: %s\n  ours   %s: %s\n", d.Kind(), compare.Describe(d.Packet), d.A, d.A.Reason, d.B, d.B.Reason)
	}
	for _, d := range c.ConnectionDifferences {
		out.Printf("%s\n  saved  %s: %s\n  ours   %s: %s\n", d, d.A.Verdict, d.A.Reason, d.B.Verdict, d.B.Reason)
	}
	if n := len(c.ConnectionDifferences); n > 0 {
		out.Printf("%d of %d connections go otherwise after the same first packet\n", n, c.Connections)
	}
	if len(c.Differences) == 0 && len(c.ConnectionDifferences) == 0 {
		out.Printf("the same: %d packets, one of each kind that the rules tell apart, and %d connections, both ways\n", c.Packets, c.Connections)
	} else {
		out.Printf("%d of %d packets differ\n", len(c.Differences), c.Packets)
	}
	if c.More {
		out.Printf("it ended there: more may differ\n")
	}
	for _, blind := range c.NotCompared {
		out.Printf("  not compared: %s\n", blind)
	}
	return out.Written(), out.Err()
}

// CompareLive compares the rules of a live pod, which come first in the report, with the pod's. [compare.Parse] reads saved ones.
func (x Explanation) CompareLive(ctx context.Context, live ruleset.Live) (Comparison, error) {
	saved, err := live.Ruleset(x.Plan.Ruleset)
	var foreign *ruleset.ForeignError
	if errors.As(err, &foreign) {
		c := x.comparison()
		c.Foreign = foreign.Rules
		return c, nil
	}
	if err != nil {
		return Comparison{}, err
	}
	return x.Compare(ctx, saved)
}

// Compare compares other rules, which come first in the report, with the pod's.
func (x Explanation) Compare(ctx context.Context, other ruleset.Ruleset) (c Comparison, err error) {
	c = x.comparison()
	// The listeners' onward connections are left out, so the family is all the same.
	c.Report, err = compare.Compare(ctx, other, x.Plan.Ruleset, compare.Options{PodAddrs: x.Subject.Addrs, Listeners: x.Listeners(ruleset.IPv4)})
	return c, err
}

func (x Explanation) comparison() Comparison {
	return Comparison{
		Pod: x.Pod, Dialect: x.Dialect, Selected: x.Decision.Selected,
		Report: compare.Report{Differences: []compare.Difference{}}, NotCompared: compare.Blind(), Configuration: x.Configuration, unselected: x.reason(),
	}
}
