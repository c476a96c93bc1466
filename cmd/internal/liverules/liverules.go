// Package liverules prints the rules that are in a pod's network namespace, and what each has matched between two looks.
package liverules

import (
	"fmt"
	"strconv"

	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Rule is a live rule and what it has matched since the previous look.
type Rule struct {
	apply.LiveRule
	Since *apply.Counters `json:"since,omitempty"`
}

// Seen are the counters of a look.
type Seen map[liveKey]apply.Counters

// liveKey identifies a rule across two looks.
type liveKey struct {
	backend            apply.Name
	family             ruleset.Family
	table, chain, rule string
	position           int
}

// Since adds what the rules have matched since the previous look; before is nil at
// the first one. A counter that decreased belongs to a new rule.
func Since(before Seen, live []apply.LiveRule) ([]Rule, Seen) {
	rules, counters := []Rule{}, Seen{}
	for _, r := range live {
		s := Rule{LiveRule: r}
		if r.Counters != nil {
			key := liveKey{r.Backend, r.Family, r.Table, r.Chain, r.Rule, r.Position}
			now, was := *r.Counters, before[key]
			if now.Packets < was.Packets {
				was = apply.Counters{}
			}
			counters[key] = now
			if before != nil {
				s.Since = &apply.Counters{Packets: now.Packets - was.Packets, Bytes: now.Bytes - was.Bytes}
			}
		}
		rules = append(rules, s)
	}
	return rules, counters
}

// Print writes the rules as text, with a heading for each table of a backend.
func Print(w *visible.Printer, rules []Rule) error {
	if len(rules) == 0 {
		w.Printf("no rules\n")
		return w.Err()
	}
	table := w.Table()
	title := ""
	for _, r := range rules {
		if t := heading(r.LiveRule); t != title {
			title = t
			table.Printf("%s\n  CHAIN\t#\tPACKETS\tBYTES\tRULE\tWHY\n", title)
		}
		packets, bytes := r.counts()
		why := r.Reason
		if !r.Ours {
			why = "not the mesh's"
		}
		table.Printf("  %s\t%d\t%s\t%s\t%s\t%s\n", r.Chain, r.Position, packets, bytes, r.Rule, why)
	}
	return table.Flush()
}

func heading(r apply.LiveRule) string {
	if r.Backend == apply.Nftables { // its tables may have rules of both families
		return fmt.Sprintf("%s, table %s", r.Backend, r.Table)
	}
	return fmt.Sprintf("%s, %s, table %s", r.Backend, r.Family, r.Table)
}

// counts formats the counters, such as "12 (+3)".
func (r Rule) counts() (packets, bytes string) {
	if r.Counters == nil {
		return "-", "-"
	}
	packets, bytes = strconv.FormatUint(r.Counters.Packets, 10), strconv.FormatUint(r.Counters.Bytes, 10)
	if r.Since != nil && r.Since.Packets > 0 {
		packets += fmt.Sprintf(" (+%d)", r.Since.Packets)
		bytes += fmt.Sprintf(" (+%d)", r.Since.Bytes)
	}
	return packets, bytes
}
