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
		return parseNFT(text)
	}
	saved, err := ruleset.ParseSaved(text)
	var live ruleset.Live
	for _, s := range saved {
		live = append(live, s.Live(ruleset.BackendIptables)...)
	}
	return live, err
}

func parseNFT(text string) (live ruleset.Live, err error) {
	tables, err := nft.ParseTables(text)
	var reader nft.Reader
	for _, t := range tables {
		there := map[string]bool{}
		for _, c := range t.Chains {
			there[c.Name] = true
		}
		for _, c := range t.Chains {
			add := func(r ruleset.LiveRule) {
				r.Table, r.Chain, r.Hook = t.Family+" "+t.Name, c.Name, c.Hook
				live = append(live, r)
			}
			for i, words := range c.Rules {
				r := reader.Read(t.Family, words, t.Sets)
				if r.Position = i + 1; len(r.Rules) > 0 && r.JumpTo != "" && !there[r.JumpTo] {
					r.Rules, r.Foreign = nil, "there is no such chain"
				}
				add(r)
			}
			if c.Hook != nil && c.Hook.Policy != "accept" {
				add(nft.Policy(c.Hook, len(c.Rules)+1))
			}
		}
	}
	return live, err
}
