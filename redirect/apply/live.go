package apply

import "github.com/meshcni/meshcni/redirect/ruleset"

// LiveRule is one rule that is in a namespace now; see [Live]. A chain's policy that drops is one too, "policy drop", after the
// chain's others.
type LiveRule struct {
	// Backend is IptablesNFT, IptablesLegacy or Nftables.
	Backend Name `json:"backend"`
	// Family is zero for a rule of nftables that applies to both families.
	Family ruleset.Family `json:"family,omitempty"`
	// Table is "nat" for iptables, "inet istio" for nftables.
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Position is the rule's place in its chain, from 1.
	Position int `json:"position"`
	// Rule is the rule as iptables-save prints it, without "-A CHAIN", or in words close to nft's.
	Rule string `json:"rule"`
	// Hook is nft's declaration of the rule's base chain: "type nat hook output priority -100; policy accept;".
	Hook string `json:"hook,omitempty"`
	// Sets are the elements, as nft writes them, of the sets of nftables that Rule names. A set is absent whose elements are not
	// shown: one that rules change, a map, or one of more than 1000 elements.
	Sets map[string][]string `json:"sets,omitempty"`
	// Counters is nil for a rule that has no counter: nftables counts only where
	// a rule says so, and the rules that this module writes do not.
	Counters *Counters `json:"counters,omitempty"`
	// Ours is set for a rule of the owner of a wanted ruleset.
	Ours bool `json:"ours"`
	// Reason explains one of our rules, if it is known: it is the
	// comment of the same rule in the wanted ruleset, or in the kernel.
	Reason string `json:"reason,omitempty"`
}

// Counters counts the matches of a rule since it was made.
type Counters struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}
