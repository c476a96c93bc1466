//go:build linux

package apply

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// nftLive is what of an owner's is in a namespace.
type nftLive struct {
	// generation counts the namespace's transactions; a batch that names it is
	// refused when others came between.
	generation uint32
	// name is that of our table, and table nil where there is none.
	name   string
	table  *liveTable
	chains []liveChain
	rules  []liveRule
	sets   []liveSet
	// leftovers are chains that the owner's program made through iptables-nft,
	// and leads the rules elsewhere that jump to them.
	leftovers []liveChain
	leads     []liveRule
}

// present reports whether anything of the owner's is there.
func (l *nftLive) present() bool { return l.table != nil || len(l.leftovers) > 0 }

type liveTable struct{ flags uint32 }

type liveChain struct {
	family      byte
	table, name string
	typ         string // of a base chain, else empty
	hook        uint32
	priority    int32
	drops       bool // by policy
}

type liveRule struct {
	family       byte
	table, chain string
	handle       uint64
	exprs        []byte
	comment      string
}

type liveSet struct {
	name     string
	elements []setElement
}

// setElement is a value, or the first value after an interval.
type setElement struct {
	key []byte
	end bool
}

// readLive lists what there is. In a namespace without nftables that is three
// requests.
func (c *nlConn) readLive(owner ruleset.Owner) (*nftLive, error) {
	l := &nftLive{name: owner.NFTTable()}
	var err error
	if l.generation, err = c.generation(); err != nil {
		return nil, err
	}
	err = c.request(unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_INET, func(w *nlWriter) {
		w.text(unix.NFTA_TABLE_NAME, l.name)
	}, func(m nlMessage) {
		l.table = &liveTable{}
		for a := range nlAttrs(m.attrs) {
			if a.typ == unix.NFTA_TABLE_FLAGS {
				l.table.flags = a.u32()
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for table inet %s: %w", l.name, err)
	}
	err = c.request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nlMessage) {
		ch := parseChain(m)
		switch {
		case ch.family == unix.NFPROTO_INET && ch.table == l.name:
			l.chains = append(l.chains, ch)
		case isIptables(ch) && owner.OwnsChain(ch.name):
			l.leftovers = append(l.leftovers, ch)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	if l.table != nil {
		if err := c.readTable(l); err != nil {
			return nil, err
		}
	}
	if err := c.readLeads(l); err != nil || !l.present() {
		return l, err
	}
	// The lists are of one moment only if nothing happened since the first.
	if now, err := c.generation(); err != nil || now != l.generation {
		return nil, cmp.Or(err, errInterrupted)
	}
	return l, nil
}

func (c *nlConn) generation() (id uint32, err error) {
	err = c.request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m nlMessage) {
		for a := range nlAttrs(m.attrs) {
			if a.typ == unix.NFTA_GEN_ID {
				id = a.u32()
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	return id, nil
}

// isIptables reports whether a chain is in a table of iptables-nft.
func isIptables(c liveChain) bool {
	_, err := ruleset.ParseTable(c.table)
	return err == nil && (c.family == unix.NFPROTO_IPV4 || c.family == unix.NFPROTO_IPV6)
}

func parseChain(m nlMessage) liveChain {
	c := liveChain{family: m.family}
	for a := range nlAttrs(m.attrs) {
		switch a.typ {
		case unix.NFTA_CHAIN_TABLE:
			c.table = a.text()
		case unix.NFTA_CHAIN_NAME:
			c.name = a.text()
		case unix.NFTA_CHAIN_TYPE:
			c.typ = a.text()
		case unix.NFTA_CHAIN_POLICY:
			c.drops = a.u32() != nfAccept
		case unix.NFTA_CHAIN_HOOK:
			for h := range nlAttrs(a.data) {
				switch h.typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.hook = h.u32()
				case unix.NFTA_HOOK_PRIORITY:
					c.priority = int32(h.u32()) //nolint:gosec // two's complement
				}
			}
		}
	}
	return c
}

func (c *nlConn) readRules(family byte, table string, fn func(liveRule)) error {
	err := c.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family, func(w *nlWriter) {
		w.text(unix.NFTA_RULE_TABLE, table)
	}, func(m nlMessage) {
		r := parseLiveRule(m)
		// Old kernels do not filter by table.
		if r.family == family && r.table == table {
			fn(r)
		}
	})
	if err != nil {
		return fmt.Errorf("list rules of table %s: %w", table, err)
	}
	return nil
}

func parseLiveRule(m nlMessage) liveRule {
	r := liveRule{family: m.family}
	for a := range nlAttrs(m.attrs) {
		switch a.typ {
		case unix.NFTA_RULE_TABLE:
			r.table = a.text()
		case unix.NFTA_RULE_CHAIN:
			r.chain = a.text()
		case unix.NFTA_RULE_HANDLE:
			for _, b := range a.data {
				r.handle = r.handle<<8 | uint64(b)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			r.exprs = bytes.Clone(a.data)
		case unix.NFTA_RULE_USERDATA:
			if d := a.data; len(d) > 2 && d[0] == udataRuleComment && int(d[1]) == len(d)-2 {
				r.comment = string(d[2 : len(d)-1])
			}
		}
	}
	return r
}

func (c *nlConn) readTable(l *nftLive) error {
	if err := c.readRules(unix.NFPROTO_INET, l.name, func(r liveRule) { l.rules = append(l.rules, r) }); err != nil {
		return err
	}
	ofTable := func(w *nlWriter) { w.text(unix.NFTA_SET_TABLE, l.name) }
	err := c.request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_INET, ofTable, func(m nlMessage) {
		var s liveSet
		for a := range nlAttrs(m.attrs) {
			if a.typ == unix.NFTA_SET_NAME {
				s.name = a.text()
			}
		}
		l.sets = append(l.sets, s)
	})
	if err != nil {
		return fmt.Errorf("list sets of table %s: %w", l.name, err)
	}
	for i := range l.sets {
		s := &l.sets[i]
		err := c.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFPROTO_INET, func(w *nlWriter) {
			w.text(unix.NFTA_SET_ELEM_LIST_TABLE, l.name)
			w.text(unix.NFTA_SET_ELEM_LIST_SET, s.name)
		}, func(m nlMessage) {
			c.left -= setWeight * len(m.attrs)
			s.parseElements(m)
		})
		if err != nil {
			return fmt.Errorf("list elements of set %s: %w", s.name, err)
		}
	}
	return nil
}

func (s *liveSet) parseElements(m nlMessage) {
	for list := range nlAttrs(m.attrs) {
		if list.typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for elem := range nlAttrs(list.data) {
			var e setElement
			for a := range nlAttrs(elem.data) {
				switch a.typ {
				case unix.NFTA_SET_ELEM_KEY:
					for v := range nlAttrs(a.data) {
						e.key = bytes.Clone(v.data)
					}
				case unix.NFTA_SET_ELEM_FLAGS:
					e.end = a.u32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
				}
			}
			s.elements = append(s.elements, e)
		}
	}
}

// readLeads finds the rules that jump to the leftovers.
func (c *nlConn) readLeads(l *nftLive) error {
	type table struct {
		family byte
		name   string
	}
	var seen []table
	ours := map[table]map[string]bool{}
	for _, ch := range l.leftovers {
		t := table{ch.family, ch.table}
		if ours[t] == nil {
			ours[t] = map[string]bool{}
			seen = append(seen, t)
		}
		ours[t][ch.name] = true
	}
	for _, t := range seen {
		ours := ours[t]
		err := c.readRules(t.family, t.name, func(r liveRule) {
			if !ours[r.chain] && ours[jumpOf(r.exprs)] {
				l.leads = append(l.leads, r)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// parseExprs splits a rule's expressions into names and attributes.
func parseExprs(b []byte, fn func(name string, attrs []nlAttr)) {
	for elem := range nlAttrs(b) {
		var name string
		var attrs []nlAttr
		for a := range nlAttrs(elem.data) {
			switch a.typ {
			case unix.NFTA_EXPR_NAME:
				name = a.text()
			case unix.NFTA_EXPR_DATA:
				attrs = slices.Collect(nlAttrs(a.data))
			}
		}
		fn(name, attrs)
	}
}

// jumpOf returns the chain that a rule jumps or goes to.
func jumpOf(b []byte) (chain string) {
	parseExprs(b, func(name string, attrs []nlAttr) {
		if name != "immediate" {
			return
		}
		for _, a := range attrs {
			if a.typ != unix.NFTA_IMMEDIATE_DATA {
				continue
			}
			for v := range nlAttrs(a.data) {
				if v.typ != unix.NFTA_DATA_VERDICT {
					continue
				}
				for w := range nlAttrs(v.data) {
					if w.typ == unix.NFTA_VERDICT_CHAIN {
						chain = w.text()
					}
				}
			}
		}
	})
	return chain
}

// nested are the attributes, by expression, that hold attributes themselves.
var nested = map[string][]uint16{
	"cmp":       {unix.NFTA_CMP_DATA},
	"bitwise":   {unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR},
	"immediate": {unix.NFTA_IMMEDIATE_DATA},
	"range":     {unix.NFTA_RANGE_FROM_DATA, unix.NFTA_RANGE_TO_DATA},
}

// canonical makes the same string of expressions that do the same: what we
// send and what the kernel gives back differ in the order of attributes, their
// flags, and in defaults said or left out. A set is taken by what it holds.
func canonical(b []byte, set func(name string) string) string {
	out := make([]byte, 0, 2*len(b))
	parseExprs(b, func(name string, attrs []nlAttr) {
		slices.SortStableFunc(attrs, func(a, b nlAttr) int { return cmp.Compare(a.typ, b.typ) })
		out = append(out, name...)
		for _, a := range attrs {
			isNested := slices.Contains(nested[name], a.typ)
			if !isNested && len(a.data) == 4 && a.u32() == 0 {
				continue // the default of every such attribute
			}
			out = append(strconv.AppendUint(append(out, ' '), uint64(a.typ), 10), '=')
			switch {
			case isNested:
				for v := range nlAttrs(a.data) {
					out = appendData(out, v)
				}
			case name == "lookup" && a.typ == unix.NFTA_LOOKUP_SET:
				out = append(out, set(a.text())...)
			default:
				out = hex.AppendEncode(out, a.data)
			}
		}
		out = append(out, '\n')
	})
	return string(out)
}

func appendData(out []byte, a nlAttr) []byte {
	if a.typ != unix.NFTA_DATA_VERDICT {
		return hex.AppendEncode(out, a.data)
	}
	var code, chain nlAttr
	for v := range nlAttrs(a.data) {
		switch v.typ {
		case unix.NFTA_VERDICT_CODE:
			code = v
		case unix.NFTA_VERDICT_CHAIN:
			chain = v
		}
	}
	return append(append(hex.AppendEncode(out, code.data), ':'), chain.text()...)
}

// canonicalElements sorts, and leaves out the ends that end nothing, of which nft
// puts one before the first interval, or one value only: whether a set is one of
// intervals is not what it holds.
func canonicalElements(elements []setElement) string {
	elements = slices.Clone(elements)
	slices.SortFunc(elements, func(a, b setElement) int {
		if c := bytes.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end {
			return -1
		}
		return 1
	})
	var out []byte
	var open []byte
	for _, e := range elements {
		switch {
		case !e.end:
			out = append(hex.AppendEncode(out, e.key), ' ')
			open = e.key
		case open != nil:
			if !follows(open, e.key) {
				out = append(hex.AppendEncode(append(out, '-'), e.key), ' ')
			}
			open = nil
		}
	}
	// The last interval has no end when it goes on to the last value there is.
	intervals := slices.ContainsFunc(elements, func(e setElement) bool { return e.end })
	if intervals && open != nil && !follows(open, make([]byte, len(open))) {
		out = append(out, '-')
	}
	return string(out)
}

// follows reports whether b is the value after a; after the last comes 0.
func follows(a, b []byte) bool {
	next := bytes.Clone(a)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] != 0 {
			break
		}
	}
	return bytes.Equal(next, b)
}
