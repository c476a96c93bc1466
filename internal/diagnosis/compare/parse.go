package compare

import (
	"errors"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Parse parses what a person has saved of a pod's rules: the output of iptables-save and ip6tables-save, one after the other in any
// order. What nft prints is an error.
func Parse(text string) (ruleset.Live, error) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "table ") {
			return nil, errors.New("it has rules of nftables, of which only the live ones are compared: the migration's report reads them")
		}
	}
	chains, err := ruleset.Parse(0, text)
	return chains.Live(ruleset.BackendIptables), err
}
