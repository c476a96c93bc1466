package explain

import (
	"errors"

	"github.com/meshcni/meshcni/redirect/compare"
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
}

// Same reports whether no difference was found.
func (c Comparison) Same() bool {
	return len(c.Differences)+len(c.ConnectionDifferences)+len(c.Foreign) == 0
}

// CompareLive compares the rules of a live pod, which come first in the report, with the pod's. [compare.Parse] reads saved ones.
func (x Explanation) CompareLive(live ruleset.Live) (Comparison, error) {
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
	return x.Compare(saved)
}

// Compare compares other rules, which come first in the report, with the pod's.
func (x Explanation) Compare(other ruleset.Ruleset) (Comparison, error) {
	c, ours := x.comparison(), x.Plan.Ruleset
	var err error
	if c.Report, err = compare.Compare(other, ours, compare.Packets(x.Subject.Addrs, other, ours)); err != nil {
		return c, err
	}
	listeners := x.Listeners(ruleset.IPv4) // their onward connections are left out, so the family is all the same
	return c, c.AddConnections(other, ours, compare.Connections(x.Subject.Addrs, listeners, other, ours))
}

func (x Explanation) comparison() Comparison {
	return Comparison{
		Pod: x.Pod, Dialect: x.Dialect, Selected: x.Decision.Selected,
		Report: compare.Report{Differences: []compare.Difference{}}, NotCompared: compare.Blind(), Configuration: x.Configuration,
	}
}
