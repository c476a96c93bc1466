//go:build linux

package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// listLimit bounds what is read of our own table.
const listLimit = 32 << 20

// session runs fn with a socket in the host's namespace, again when it was interrupted.
func (s *Set) session(ctx context.Context, fn func(*nfnetlink.Conn) error) error {
	fd, err := s.o.NetNS.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	if err != nil {
		return unsupported(fmt.Errorf("open netfilter socket: %w", err))
	}
	// After something was removed that takes some 10 ms, until no packet can be in it, so nobody waits for it.
	defer func() { go func() { _ = unix.Close(fd) }() }()
	c := nfnetlink.Conn{FD: fd, Limit: listLimit}
	c.Setup()
	return unsupported(c.Session(ctx, listLimit, func() error { return fn(&c) }))
}

// unsupported makes what a kernel without a feature says an [apply.ErrNoBackend].
func unsupported(err error) error {
	for _, no := range []error{unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.ENOENT, unix.EINVAL} {
		if errors.Is(err, no) {
			return fmt.Errorf("%w: nftables with inet nat (Linux 5.2): %w", apply.ErrNoBackend, err)
		}
	}
	return err
}

func findTable(c *nfnetlink.Conn, name string) (flags uint32, there bool, err error) {
	err = c.Request(unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
		w.Text(unix.NFTA_TABLE_NAME, name)
	}, func(m nfnetlink.Message) {
		flags, there = m.Attr(unix.NFTA_TABLE_FLAGS).U32(), true
	})
	if err != nil {
		return 0, false, fmt.Errorf("look for table inet %s: %w", name, err)
	}
	return flags, there, nil
}

// tableState is our table as it is in the kernel.
type tableState struct {
	generation uint32
	there      bool
	intact     bool
	entries    Entries
}

func (s *Set) state(c *nfnetlink.Conn) (st tableState, err error) {
	st.entries = Entries{}
	err = c.Request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
		st.generation = m.Attr(unix.NFTA_GEN_ID).U32()
	})
	if err != nil {
		return st, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	var flags uint32
	if flags, st.there, err = findTable(c, s.o.Table); err != nil || !st.there {
		return st, err
	}
	st.intact = flags == 0 // a dormant table does nothing
	for _, f := range s.families {
		keyed := false
		err := c.Request(unix.NFT_MSG_GETSET, 0, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
			w.Text(unix.NFTA_SET_TABLE, s.o.Table)
			w.Text(unix.NFTA_SET_NAME, setName(f))
		}, func(m nfnetlink.Message) {
			keyed = int(m.Attr(unix.NFTA_SET_KEY_LEN).U32()) == f.Bits()/8 && m.Attr(unix.NFTA_SET_FLAGS).U32() == 0
		})
		if err != nil {
			return st, fmt.Errorf("look for set %s: %w", setName(f), err)
		}
		st.intact = st.intact && keyed
		if !keyed {
			continue
		}
		if err := readElements(c, s.o.Table, setName(f), st.entries); err != nil {
			return st, err
		}
	}
	same, err := s.sameChains(c)
	st.intact = st.intact && same
	return st, err
}

// readElements adds a set's addresses with the pods that their comments name.
func readElements(c *nfnetlink.Conn, table, set string, into Entries) error {
	err := c.Request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
		w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		w.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(m nfnetlink.Message) {
		for e := range nfnetlink.Attrs(m.Attr(unix.NFTA_SET_ELEM_LIST_ELEMENTS).Data) {
			a, ok := netip.AddrFromSlice(e.Attr(unix.NFTA_SET_ELEM_KEY).Attr(unix.NFTA_DATA_VALUE).Data)
			if ok {
				into[a] = types.UID(comment(e.Attr(unix.NFTA_SET_ELEM_USERDATA).Data))
			}
		}
	})
	if err != nil {
		return fmt.Errorf("list set %s of table inet %s: %w", set, table, err)
	}
	return nil
}

// sameChains reports whether the chains and their rules are as wanted.
func (s *Set) sameChains(c *nfnetlink.Conn) (bool, error) {
	chains := s.chains()
	same := true
	for _, want := range chains {
		found := false
		err := c.Request(unix.NFT_MSG_GETCHAIN, 0, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
			w.Text(unix.NFTA_CHAIN_TABLE, s.o.Table)
			w.Text(unix.NFTA_CHAIN_NAME, want.name)
		}, func(m nfnetlink.Message) {
			hook := m.Attr(unix.NFTA_CHAIN_HOOK)
			found = m.Text(unix.NFTA_CHAIN_TYPE) == want.typ && hook.Attr(unix.NFTA_HOOK_HOOKNUM).U32() == want.hook &&
				int32(hook.Attr(unix.NFTA_HOOK_PRIORITY).U32()) == want.priority && //nolint:gosec // two's complement
				m.Attr(unix.NFTA_CHAIN_POLICY).U32() == nfAccept
		})
		if err != nil {
			return false, fmt.Errorf("look for chain %s: %w", want.name, err)
		}
		same = same && found
	}
	live := map[string][][]byte{}
	err := c.Request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
		w.Text(unix.NFTA_RULE_TABLE, s.o.Table)
	}, func(m nfnetlink.Message) {
		if m.Text(unix.NFTA_RULE_TABLE) == s.o.Table { // old kernels list all
			chain := m.Text(unix.NFTA_RULE_CHAIN)
			live[chain] = append(live[chain], bytes.Clone(m.Attr(unix.NFTA_RULE_EXPRESSIONS).Data))
		}
	})
	if err != nil {
		return false, fmt.Errorf("list rules of table inet %s: %w", s.o.Table, err)
	}
	for _, want := range chains {
		rules := live[want.name]
		same = same && len(rules) == len(want.rules)
		for i := 0; same && i < len(rules); i++ {
			same = sameRule(rules[i], want.rules[i])
		}
	}
	return same, nil
}

// live reads the table.
func (s *Set) live(ctx context.Context) (st tableState, err error) {
	err = s.session(ctx, func(c *nfnetlink.Conn) (err error) {
		st, err = s.state(c)
		return err
	})
	return st, err
}

// write makes the entries those that change returns of those that are there, and the table as wanted, in one transaction.
func (s *Set) write(ctx context.Context, change func(Entries) Entries) (result Result, err error) {
	err = s.session(ctx, func(c *nfnetlink.Conn) error {
		st, err := s.state(c)
		if err != nil {
			return err
		}
		want := change(maps.Clone(st.entries))
		put, gone := difference(st.entries, want)
		result = Result{entries: want, Entries: len(want), Added: len(put), Removed: len(gone), Repaired: !st.intact}
		w := nfnetlink.Writer{Seq: c.Seq + 1}
		switch {
		case st.intact && len(put)+len(gone) == 0:
			return nil
		case st.intact:
			w.BeginBatch(0)
			// An entry that changes its pod is replaced: the kernel has no update, and a transaction shows no gap.
			replaced := maps.Clone(gone)
			for a, uid := range st.entries {
				if _, changes := put[a]; changes {
					replaced[a] = uid
				}
			}
			s.elements(&w, unix.NFT_MSG_DELSETELEM, 0, replaced)
			s.elements(&w, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, put)
		default:
			w.BeginBatch(st.generation)
			s.rebuild(&w, st.there, want)
		}
		last := w.EndBatch()
		err = c.Commit(w.B, last)
		if st.intact && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST)) {
			return nfnetlink.ErrInterrupted // somebody changed our table meanwhile
		}
		if err != nil {
			return fmt.Errorf("write table inet %s: %w", s.o.Table, err)
		}
		return nil
	})
	return result, err
}

// dropTable removes a table of family inet, if it is there.
func (s *Set) dropTable(ctx context.Context, name string) error {
	return s.session(ctx, func(c *nfnetlink.Conn) error {
		_, there, err := findTable(c, name)
		if err != nil || !there {
			return err
		}
		w := nfnetlink.Writer{Seq: c.Seq + 1}
		w.BeginBatch(0)
		table(&w, unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, name)
		last := w.EndBatch()
		switch err := c.Commit(w.B, last); {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("delete table inet %s: %w", name, err)
		}
		return nil
	})
}

func setName(f ruleset.Family) string {
	return map[ruleset.Family]string{ruleset.IPv4: "v4", ruleset.IPv6: "v6"}[f]
}

// difference lists the changes that lead from one state to the other. put has also what changes its pod.
func difference(have, want Entries) (put, gone Entries) {
	put, gone = Entries{}, Entries{}
	for a, uid := range want {
		if have[a] != uid {
			put[a] = uid
		}
	}
	for a, uid := range have {
		if _, stays := want[a]; !stays {
			gone[a] = uid
		}
	}
	return put, gone
}
