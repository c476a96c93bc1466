//go:build linux

package apply

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// liveNFTables lists the rules of nftables that iptables-nft did not write.
func liveNFTables(ctx context.Context, ns Namespace, wanted []ruleset.Ruleset) (all []LiveRule, err error) {
	err = newNFTables(ns).session(ctx, func(s *nftSession) error {
		all = nil
		generation, err := s.generation()
		if err != nil {
			return err
		}
		chains, err := s.baseChains()
		if err != nil {
			return err
		}
		var rules []liveRule
		err = s.Request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
			if r := parseLiveRule(m); !(nftTable{r.family, r.table}).isIptables() {
				rules = append(rules, r)
			}
		})
		if err != nil {
			return err
		}
		sets, err := s.shownSets(rules)
		if err != nil {
			return err
		}
		positions := map[chainAt]int{}
		for i := range rules {
			r := &rules[i]
			at := chainAt{nftTable{r.family, r.table}, r.chain}
			positions[at]++
			live := describeNative(*r, positions[at], wanted, sets[at.nftTable])
			if c, ok := chains[at]; ok {
				live.Hook = c.declaration()
			}
			all = append(all, live)
		}
		for _, at := range slices.SortedFunc(maps.Keys(chains), chainAt.compare) {
			if c := chains[at]; c.drops {
				all = append(all, LiveRule{
					Backend: Nftables, Table: nftFamilies[c.family] + " " + c.table, Chain: c.name, Position: positions[at] + 1,
					Rule: "policy drop", Hook: c.declaration(),
				})
			}
		}
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

func describeNative(r liveRule, position int, wanted []ruleset.Ruleset, sets map[string]*shownSet) LiveRule {
	live := LiveRule{Backend: Nftables, Table: nftFamilies[r.family] + " " + r.table, Chain: r.chain, Position: position}
	live.Ours = r.family == unix.NFPROTO_INET && slices.ContainsFunc(wanted, func(rs ruleset.Ruleset) bool {
		return nft.TableName(rs.Owner()) == r.table
	})
	if live.Ours {
		live.Reason, r.comment = r.comment, ""
	}
	live.Rule = describe(&r)
	parseExprs(r.exprs, func(name string, data nfnetlink.Attr) {
		set := data.Attr(unix.NFTA_LOOKUP_SET).Text()
		if s := sets[set]; name == "lookup" && s != nil && s.elements != nil {
			if live.Sets == nil {
				live.Sets = map[string][]string{}
			}
			live.Sets[set] = s.elements
		}
	})
	switch {
	case r.family == unix.NFPROTO_IPV4 || strings.Contains(live.Rule, "meta nfproto ipv4"):
		live.Family = ruleset.IPv4
	case r.family == unix.NFPROTO_IPV6 || strings.Contains(live.Rule, "meta nfproto ipv6"):
		live.Family = ruleset.IPv6
	}
	parseExprs(r.exprs, func(name string, data nfnetlink.Attr) {
		if name == "counter" {
			live.Counters = &Counters{Packets: data.Attr(unix.NFTA_COUNTER_PACKETS).U64(), Bytes: data.Attr(unix.NFTA_COUNTER_BYTES).U64()}
		}
	})
	return live
}
