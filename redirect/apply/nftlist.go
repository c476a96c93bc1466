package apply

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// inNftables runs fn with a connection in the namespace.
func inNftables(ns Namespace, fn func(*nftables.Conn) error) error {
	return ns.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		return fn(c)
	})
}

// listTables returns all nftables tables of the calling thread's namespace. It
// is on the way of every ADD, so it asks with one message of its own: a
// connection of the nftables package costs several times as much.
func listTables() ([]nftTable, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP)
	req.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var found []nftTable
	for _, msg := range msgs {
		attrs, err := nl.ParseRouteAttr(msg[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("list nftables tables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_TABLE_NAME {
				found = append(found, nftTable{nftables.TableFamily(msg[0]), nl.BytesToString(a.Value)})
			}
		}
	}
	return found, nil
}

// dropEmptyTables removes tables that iptables-nft made and that hold nothing:
// only its own base chains, which accept. iptables makes them again when it
// needs them. (Tables of the legacy variant cannot be removed from a namespace.)
func dropEmptyTables(ns Namespace) error {
	err := inNftables(ns, func(c *nftables.Conn) error {
		tables, err := c.ListTables()
		if err != nil {
			return err
		}
		dropped := false
		for _, t := range tables {
			ip := t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6
			if !ip || !slices.ContainsFunc(ruleset.Tables[:], func(k ruleset.Table) bool { return k.String() == t.Name }) {
				continue
			}
			empty, err := isEmpty(c, t)
			if err != nil {
				return err
			}
			if empty {
				c.DelTable(t)
				dropped = true
			}
		}
		if !dropped {
			return nil
		}
		return c.Flush()
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove empty tables: %w", err)
	}
	return nil
}

func isEmpty(c *nftables.Conn, t *nftables.Table) (bool, error) {
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return false, err
	}
	for _, ch := range chains {
		if ch.Table.Name != t.Name {
			continue
		}
		if !ruleset.IsBuiltin(ch.Name) || ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept {
			return false, nil
		}
		rules, err := c.GetRules(t, ch)
		if err != nil || len(rules) > 0 {
			return false, err
		}
	}
	sets, err := c.GetSets(t)
	return len(sets) == 0, err
}
