package compare

import (
	"errors"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Parse parses what a person has saved of a pod's rules: the output of iptables-save and ip6tables-save, one after the other in any
// order, or that of nft list ruleset. Both in one text is an error: which of them sees a packet first is not in it. Rules that
// iptables-nft wrote are outside the model as nft prints them.
func Parse(text string) (ruleset.Live, error) {
	iptables, native := false, false
	for line := range strings.Lines(text) {
		native = native || strings.HasPrefix(line, "table ")
		iptables = iptables || strings.HasPrefix(line, "*")
	}
	switch {
	case native && iptables:
		return nil, errors.New("it has rules of iptables and of nftables, which are not compared together")
	case native:
		chains, err := nft.ParseTables(text)
		return chains.Live(ruleset.BackendNftables), err
	}
	chains, err := ruleset.Parse(0, text)
	return chains.Live(ruleset.BackendIptables), err
}
