//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// dropRules removes a chain and the jumps to it from each variant that has it.
func (s *Set) dropRules(ctx context.Context, chain string, jumps []jump) error {
	used, err := s.using(ctx, chain)
	for _, variant := range used {
		err = errors.Join(err, s.dropFrom(ctx, variant, chain, jumps))
	}
	return err
}

// dropFrom removes a chain of one variant, which may be in some of the tables only.
func (s *Set) dropFrom(ctx context.Context, variant ruleset.Backend, chain string, jumps []jump) error {
	for _, f := range ruleset.Families {
		var text strings.Builder
		for _, j := range jumps {
			if j.family != f {
				continue
			}
			has, err := s.hasTable(ctx, variant, f, j.table)
			if err != nil {
				return err
			}
			if !has {
				continue
			}
			live, err := s.run(ctx, variant, f, "", "", "-t", j.table, "-S", j.from)
			if err != nil {
				return err
			}
			// The chain is made, or emptied, and then goes: no question whether it is there.
			text.WriteString("*" + j.table + "\n:" + chain + " - [0:0]\n")
			text.WriteString(strings.Repeat("-D "+j.from+" -j "+chain+"\n", count(added(live), "-A "+j.from+" -j "+chain)))
			text.WriteString("-X " + chain + "\nCOMMIT\n")
		}
		if text.Len() == 0 {
			continue
		}
		if _, err := s.run(ctx, variant, f, "-restore", text.String(), "--noflush"); err != nil {
			return fmt.Errorf("remove %s rules of chain %s: %w", f, chain, err)
		}
		if variant == ruleset.BackendIptablesNFT {
			if err := s.dropEmpty(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasTable reports whether the variant has the table, so that looking into it does not make it.
func (s *Set) hasTable(ctx context.Context, variant ruleset.Backend, f ruleset.Family, name string) (has bool, err error) {
	if variant == ruleset.BackendIptablesLegacy {
		return s.legacyHas(f, name)
	}
	err = s.session(ctx, func(c *nfnetlink.Conn) error {
		return c.Request(unix.NFT_MSG_GETTABLE, 0, header[f].proto, func(w *nfnetlink.Writer) {
			w.Text(unix.NFTA_TABLE_NAME, name)
		}, func(nfnetlink.Message) { has = true })
	})
	if err != nil {
		return false, fmt.Errorf("look for table %s of %s: %w", name, variant, err)
	}
	return has, nil
}

// dropEmpty removes tables of iptables-nft that hold nothing but built-in chains that accept. iptables makes them again
// when it needs them.
func (s *Set) dropEmpty(ctx context.Context, f ruleset.Family) error {
	return s.session(ctx, func(c *nfnetlink.Conn) error {
		var generation uint32
		err := c.Request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) { generation = m.Attr(unix.NFTA_GEN_ID).U32() })
		if err != nil {
			return err
		}
		chains, used := map[string]bool{}, map[string]bool{}
		err = c.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, header[f].proto, nil, func(m nfnetlink.Message) {
			t := m.Text(unix.NFTA_CHAIN_TABLE)
			chains[t] = true
			used[t] = used[t] || m.Attr(unix.NFTA_CHAIN_HOOK).Data == nil || m.Attr(unix.NFTA_CHAIN_POLICY).U32() != nfAccept
		})
		for _, list := range []struct{ msg, table uint16 }{{unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE}, {unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE}} {
			for _, name := range tables {
				if err == nil && chains[name] && !used[name] {
					err = c.Request(list.msg, unix.NLM_F_DUMP, header[f].proto, func(w *nfnetlink.Writer) { w.Text(list.table, name) },
						func(m nfnetlink.Message) { used[m.Text(list.table)] = true })
				}
			}
		}
		if err != nil {
			return fmt.Errorf("look for empty tables: %w", err)
		}
		empty := slices.DeleteFunc(slices.Clone(tables), func(name string) bool { return !chains[name] || used[name] })
		if len(empty) == 0 {
			return nil
		}
		w := nfnetlink.Writer{Seq: c.Seq + 1}
		w.BeginBatch(generation)
		for _, name := range empty {
			table(&w, unix.NFT_MSG_DELTABLE, header[f].proto, name)
		}
		last := w.EndBatch()
		if err := c.Commit(w.B, last); err != nil {
			return fmt.Errorf("delete empty tables %s: %w", strings.Join(empty, ", "), err)
		}
		return nil
	})
}
