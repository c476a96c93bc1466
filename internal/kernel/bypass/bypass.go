// Package bypass tells whether the packets of a running pod come to the rules of its network namespace at all. Whoever says that a pod
// is captured asks it: CHECK, verification, the controller of the node's proxy, the agent's looks, and the commands.
package bypass

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Told divides what [Live] has found into the ways that are open for certain, and what cannot be told of others.
func Told(all []dialect.Bypass, err error) (open []dialect.Bypass, unknown []ruleset.Difference) {
	unsure := func(chain, text string) {
		unknown = append(unknown, ruleset.Difference{Kind: ruleset.KindUnknown, Family: ruleset.IPv4, Chain: chain, Position: 1, Rule: text})
	}
	for _, b := range all {
		if b.Unsure {
			unsure("interface "+b.Interface, "what arrives there is seen first by "+b.HandedTo)
		} else {
			open = append(open, b)
		}
	}
	if err != nil {
		unsure("interfaces", err.Error())
	}
	return open, unknown
}
