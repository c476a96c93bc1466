//go:build linux

package apply

import (
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

// nftTable is one nftables table; its family is an NFPROTO_ number.
type nftTable struct {
	family byte
	name   string
}

// dormant is the flag of a table whose chains no packet meets (NFT_TABLE_F_DORMANT in linux/netfilter/nf_tables.h).
const dormant = 1

// isIptables reports whether iptables-nft reads and writes the table. It also has
// the table "security", of which no mesh has anything.
func (t nftTable) isIptables() bool {
	_, err := ruleset.ParseTable(t.name)
	return (err == nil || t.name == "security") && (t.family == unix.NFPROTO_IPV4 || t.family == unix.NFPROTO_IPV6)
}

// listTables returns all nftables tables of the calling thread's namespace. A kernel without
// nftables is an [ErrNoBackend]; any other error says that what is there cannot be told.
func listTables() (found, asleep []nftTable, err error) {
	fd, err := netfilterSocket()
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables tables: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	c := nlConn{nfnetlink.Conn{FD: fd, Limit: listLimit}} // for all attempts
	c.Setup()
	for attempt := 1; ; attempt++ {
		found, asleep = nil, nil
		err = c.Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
			found = append(found, nftTable{m.Family, m.Text(unix.NFTA_TABLE_NAME)})
			if m.Attr(unix.NFTA_TABLE_FLAGS).U32()&dormant != 0 {
				asleep = append(asleep, found[len(found)-1])
			}
		})
		if !errors.Is(err, nfnetlink.ErrInterrupted) || attempt == nfnetlink.MaxAttempts {
			break
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables tables: %w", classify(err))
	}
	return found, asleep, nil
}

// dropTables removes the tables that choose returns, in one transaction, and chooses again if others' transactions come
// between.
func dropTables(ctx context.Context, ns Namespace, choose func(*nftSession) ([]nftTable, error)) error {
	err := newNFTables(ns).session(ctx, func(s *nftSession) error {
		generation, err := s.generation()
		if err != nil {
			return err
		}
		tables, err := choose(s)
		if err != nil || len(tables) == 0 {
			return err
		}
		b := newBatch(s.Seq+1, generation)
		for _, t := range tables {
			b.delTable(t)
		}
		s.removed = true
		return s.Commit(b.B, b.EndBatch())
	})
	if err != nil {
		return fmt.Errorf("remove nftables tables: %w", err)
	}
	return nil
}

// inetTables are the names of the tables of family inet in which the owner's rules may be: ours first.
func inetTables(owner ruleset.Ownership) []string {
	if owner.Prefix == "" {
		return nil
	}
	return append([]string{nft.TableName(owner)}, owner.OtherTables...)
}

// dropInet removes the tables of family inet with these names.
func dropInet(ctx context.Context, ns Namespace, names []string) error {
	return dropTables(ctx, ns, func(s *nftSession) (found []nftTable, err error) {
		err = s.Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_INET, nil, func(m nfnetlink.Message) {
			if name := m.Text(unix.NFTA_TABLE_NAME); m.Family == unix.NFPROTO_INET && slices.Contains(names, name) {
				found = append(found, nftTable{m.Family, name})
			}
		})
		return found, err
	})
}

// dropEmptyTables removes tables that iptables-nft made and that hold nothing: only its own base chains, which accept.
// iptables makes them again when it needs them. (Tables of the legacy variant cannot be removed from a namespace.)
func dropEmptyTables(ctx context.Context, ns Namespace) error {
	return dropTables(ctx, ns, func(s *nftSession) (empty []nftTable, err error) {
		used := map[nftTable]bool{}
		err = s.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
			c := parseChain(m)
			t := nftTable{c.family, c.table}
			used[t] = used[t] || !chains.IsBuiltin(c.name) || c.drops
		})
		if err != nil {
			return nil, err
		}
		for t := range used {
			if used[t] || !t.isIptables() {
				continue
			}
			count := func(liveRule) { used[t] = true }
			if err := s.readRules(t.family, t.name, count); err != nil {
				return nil, err
			}
			err := s.Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.family, func(w *nfnetlink.Writer) {
				w.Text(unix.NFTA_SET_TABLE, t.name)
			}, func(nfnetlink.Message) { used[t] = true })
			if err != nil {
				return nil, err
			}
			if !used[t] {
				empty = append(empty, t)
			}
		}
		return empty, nil
	})
}
