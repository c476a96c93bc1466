package explain

import (
	"errors"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect/compare"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Comparison is the output of compare, as JSON.
type Comparison struct {
	Pod      PodName `json:"pod"`
	Dialect  string  `json:"dialect"`
	Selected bool    `json:"selected"`
	compare.Report
	Foreign []compare.ForeignRule `json:"foreign,omitempty"`
	// NotCompared lists the parts that a comparison does not see.
	NotCompared []string `json:"not_compared"`
	// Configuration is the origin of the settings.
	Configuration Configuration `json:"configuration"`
}

// Same reports whether no difference was found.
func (c Comparison) Same() bool {
	return len(c.Differences)+len(c.ConnectionDifferences)+len(c.Foreign) == 0
}

// CompareSaved compares the target's rules with what iptables-save and ip6tables-save, or nft, printed in a live pod.
func (t *Target) CompareSaved(asked dialect.List, c Configuration, text string) (Comparison, error) {
	saved, err := compare.Rules(text, t.Ruleset)
	var foreign *compare.ForeignError
	if errors.As(err, &foreign) {
		x := t.comparison(asked, c)
		x.Foreign = foreign.Rules
		return x, nil
	}
	if err != nil {
		return Comparison{}, err
	}
	return t.CompareRules(asked, c, saved)
}

// CompareRules compares other rules, which come first in the report, with the target's.
func (t *Target) CompareRules(asked dialect.List, c Configuration, other ruleset.Ruleset) (Comparison, error) {
	x := t.comparison(asked, c)
	var err error
	if x.Report, err = compare.Compare(other, t.Ruleset, compare.Packets(t.Addrs, other, t.Ruleset)); err != nil {
		return x, err
	}
	listeners := t.Listeners(ruleset.IPv4) // their onward connections are left out, so the family is all the same
	return x, x.AddConnections(other, t.Ruleset, compare.Connections(t.Addrs, listeners, other, t.Ruleset))
}

func (t *Target) comparison(asked dialect.List, c Configuration) Comparison {
	return Comparison{
		Pod: Name(t.Pod), Dialect: t.Meshes(asked), Selected: t.Decision.Selected,
		Report: compare.Report{Differences: []compare.Difference{}}, NotCompared: compare.Blind(), Configuration: c,
	}
}
