package apply

import (
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// NFT returns the ruleset as input for nft -f: one transaction that replaces an
// earlier program of the same owner. It has the same rules that the
// nftables backend writes. It is empty if no family has a program. Policy routing, which nftables
// lacks, is in comments as iproute2 commands.
func NFT(rs ruleset.Ruleset) string { return nft.Text(rs) }
