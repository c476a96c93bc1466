//go:build linux

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// liveNFTables lists the rules of nftables that iptables-nft did not write.
func liveNFTables(ctx context.Context, ns Namespace, wanted []ruleset.Ruleset) (ruleset.Live, error) {
	chains, err := nativeChains(ctx, ns, func(t nftTable) bool { return !t.isIptables() }, wanted...)
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", err)
	}
	return chains.Live(ruleset.BackendNftables), nil
}

// nativeChains returns the chains of the tables that are chosen, with so many rules as are read of others'.
func nativeChains(ctx context.Context, ns Namespace, choose func(nftTable) bool, wanted ...ruleset.Ruleset) (found ruleset.LiveChains, err error) {
	err = newNFTables(ns).session(ctx, func(s *nftSession) error {
		generation, err := s.generation()
		if err != nil {
			return err
		}
		ours := func(t nftTable) bool {
			return t.family == unix.NFPROTO_INET && slices.ContainsFunc(wanted, func(rs ruleset.Ruleset) bool { return t.name == nft.TableName(rs.Owner()) })
		}
		var at map[chainAt]int
		var crowd bool
		if found, at, crowd, err = s.liveChains(choose, ours); err != nil {
			return err
		}
		tables := tablesOf(at)
		if crowd {
			tables = slices.DeleteFunc(tables, func(t nftTable) bool { return !ours(t) })
		}
		rules, sets, cut, err := s.liveRules(tables, ours)
		if err != nil {
			return err
		}
		if crowd {
			cut = func(c chainAt) bool { return !ours(c.nftTable) }
		}
		var reader nft.Reader
		for i := range rules {
			r := &rules[i]
			index, ok := at[chainAt{r.at(), r.chain}]
			if !ok {
				return nfnetlink.ErrInterrupted // the chain was made meanwhile
			}
			reason := ""
			if ours(r.at()) {
				reason, r.comment = r.comment, ""
			}
			live := reader.Read(nftFamilies[r.family], describe(r), sets[r.at()])
			c := &found[index]
			live.Table, live.Chain, live.Position, live.Handle = c.Table, c.Name, len(c.Rules)+1, r.handle
			live.Ours, live.Reason = ours(r.at()), reason
			parseExprs(r.exprs, func(name string, data nfnetlink.Attr) {
				if name == "counter" {
					live.Counters = &ruleset.Counters{Packets: data.Attr(unix.NFTA_COUNTER_PACKETS).U64(), Bytes: data.Attr(unix.NFTA_COUNTER_BYTES).U64()}
				}
			})
			c.Rules = append(c.Rules, live)
		}
		for t, index := range at {
			c := &found[index]
			if cut(t) {
				c.Rules = append(c.Rules, unread(c.Table, c.Name, len(c.Rules)+1, t.families()...))
			}
		}
		// The lists are consistent only if there was no transaction meanwhile.
		if now, err := s.generation(); err != nil || now != generation {
			return cmp.Or(err, nfnetlink.ErrInterrupted)
		}
		return nil
	})
	return found, err
}

// othersLimit bounds the bytes that are read of the rules of others and of their sets: some 700 rules. The pod may have any number, and
// whoever asks for a look makes us read them. A variable for tests.
var othersLimit = 256 << 10

// liveRules reads the rules of tables, and the sets that they name: our own whole, and of others' so many as othersLimit says. cut reports
// whether there may be more in a chain than was read.
func (s *nftSession) liveRules(tables []nftTable, ours func(nftTable) bool) (rules []liveRule, sets map[nftTable]map[string][]string, cut func(chainAt) bool, err error) {
	keep := func(r liveRule) { rules = append(rules, r) }
	for _, t := range tables {
		if ours(t) {
			if err := s.readRules(t.family, t.name, keep); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	if sets, err = s.elements(rules, chains.MaxElements, ownWeight); err != nil {
		return nil, nil, nil, err
	}
	cut = func(chainAt) bool { return false }
	tables = slices.DeleteFunc(tables, ours)
	if len(tables) == 0 {
		return rules, sets, cut, nil
	}
	// By a socket of its own: the kernel ends a list that nobody reads on only with the socket.
	others := nlConn{nfnetlink.Conn{Limit: othersLimit}}
	err = s.ns.Do(func() (err error) {
		others.FD, err = netfilterSocket()
		return err
	})
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() { _ = unix.Close(others.FD) }()
	own := len(rules)
	for i, t := range tables {
		if err = others.readRules(t.family, t.name, keep); errors.Is(err, nfnetlink.ErrLong) {
			rest, read := map[nftTable]bool{}, map[chainAt]bool{}
			for _, t := range tables[i:] {
				rest[t] = true
			}
			for _, r := range rules[own:] {
				read[chainAt{r.at(), r.chain}] = true
			}
			last := chainAt{nftTable: t}
			if len(rules) > own {
				last = chainAt{rules[len(rules)-1].at(), rules[len(rules)-1].chain}
			}
			cut = func(c chainAt) bool { return rest[c.nftTable] && (c == last || !read[c]) }
			break
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	named, err := others.elements(rules[own:], maxElements, setWeight)
	if err != nil && !errors.Is(err, nfnetlink.ErrLong) { // those without their sets are outside the model
		return nil, nil, nil, err
	}
	for t, all := range named {
		sets[t] = all
	}
	return rules, sets, cut, nil
}

// unread stands for the rules of a chain that were not read.
func unread(table, chain string, position int, families ...ruleset.Family) ruleset.LiveRule {
	r := ruleset.LiveRule{Table: table, Chain: chain, Position: position, Text: "more rules", Unread: true}
	if len(families) == 1 {
		r.Family = families[0]
	}
	r.Foreign, r.Known.Target.Action = "not read: others' rules are too many", ruleset.ActionUnknown
	return r
}

// families lists those of a table's packets.
func (t nftTable) families() []ruleset.Family {
	switch t.family {
	case unix.NFPROTO_IPV4:
		return []ruleset.Family{ruleset.IPv4}
	case unix.NFPROTO_IPV6:
		return []ruleset.Family{ruleset.IPv6}
	}
	return ruleset.Families[:]
}

// tablesOf lists the tables of chains, in an order that is always the same.
func tablesOf(at map[chainAt]int) (tables []nftTable) {
	seen := map[nftTable]bool{}
	for c := range at {
		if !seen[c.nftTable] {
			seen[c.nftTable] = true
			tables = append(tables, c.nftTable)
		}
	}
	slices.SortFunc(tables, func(a, b nftTable) int { return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.name, b.name)) })
	return tables
}

var nftFamilies = map[byte]string{
	unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// String returns for example "inet istio".
func (t nftTable) String() string { return nftFamilies[t.family] + " " + t.name }
