//go:build linux

package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// liveNFTables lists the rules of nftables that iptables-nft did not write.
func liveNFTables(ctx context.Context, ns Namespace, wanted []ruleset.Ruleset) (all ruleset.Live, err error) {
	err = newNFTables(ns).session(ctx, func(s *nftSession) error {
		all = nil
		generation, err := s.generation()
		if err != nil {
			return err
		}
		chains, at, err := s.liveChains()
		if err != nil {
			return err
		}
		var rules []liveRule
		err = s.Request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
			if r := parseLiveRule(m); !r.at().isIptables() {
				rules = append(rules, r)
			}
		})
		if err != nil {
			return err
		}
		sets, err := s.elements(rules)
		if err != nil {
			return err
		}
		var reader nft.Reader
		for i := range rules {
			r := &rules[i]
			index, ok := at[chainAt{r.at(), r.chain}]
			if !ok {
				return nfnetlink.ErrInterrupted // the chain was made meanwhile
			}
			reason := ""
			ours := slices.ContainsFunc(wanted, func(rs ruleset.Ruleset) bool {
				return r.at() == nftTable{unix.NFPROTO_INET, nft.TableName(rs.Owner())}
			})
			if ours {
				reason, r.comment = r.comment, ""
			}
			live := reader.Read(nftFamilies[r.family], describe(r), sets[r.at()])
			c := &chains[index]
			live.Table, live.Chain, live.Position, live.Handle = c.Table, c.Name, len(c.Rules)+1, r.handle
			live.Ours, live.Reason = ours, reason
			parseExprs(r.exprs, func(name string, data nfnetlink.Attr) {
				if name == "counter" {
					live.Counters = &ruleset.Counters{Packets: data.Attr(unix.NFTA_COUNTER_PACKETS).U64(), Bytes: data.Attr(unix.NFTA_COUNTER_BYTES).U64()}
				}
			})
			c.Rules = append(c.Rules, live)
		}
		all = chains.Live(ruleset.BackendNftables)
		// The lists are consistent only if there was no transaction meanwhile.
		if now, err := s.generation(); err != nil || now != generation {
			return cmp.Or(err, nfnetlink.ErrInterrupted)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", err)
	}
	return all, nil
}

var nftFamilies = map[byte]string{
	unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// String returns for example "inet istio".
func (t nftTable) String() string { return nftFamilies[t.family] + " " + t.name }
