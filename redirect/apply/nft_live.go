//go:build linux

package apply

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// nftLive is the part of a namespace's tables that is an owner's.
type nftLive struct {
	// generation counts the namespace's transactions. The kernel refuses a batch that names an old one.
	generation uint32
	// name is that of our table, and table nil where there is none.
	name   string
	table  *liveTable
	chains []liveChain
	rules  []liveRule
	sets   []liveSet
	// leftovers are the owner's chains in tables of iptables-nft, and leads the
	// rules in other chains that jump to them.
	leftovers []liveChain
	leads     []liveRule
	// others are those of the owner's OtherTables that have chains.
	others []nftTable
	// beside are tables of others with a base chain at a hook of ours.
	beside []nftTable
}

// present reports whether anything of the owner's is there.
func (l *nftLive) present() bool { return l.table != nil || l.elsewhere() }

// elsewhere reports whether anything of the owner's is there outside our table.
func (l *nftLive) elsewhere() bool { return len(l.leftovers)+len(l.others) > 0 }

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

func (r *liveRule) at() nftTable { return nftTable{r.family, r.table} }

type liveSet struct {
	name     string
	elements []setElement
}

// setElement is a value, or the first value after an interval.
type setElement struct {
	key []byte
	end bool
}

// readLive lists what the owner has, by three requests if that is nothing.
func (c *nlConn) readLive(owner ruleset.Ownership) (*nftLive, error) {
	l := &nftLive{name: nft.TableName(owner)}
	var err error
	if l.generation, err = c.generation(); err != nil {
		return nil, err
	}
	err = c.Request(unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
		w.Text(unix.NFTA_TABLE_NAME, l.name)
	}, func(m nfnetlink.Message) {
		l.table = &liveTable{flags: m.Attr(unix.NFTA_TABLE_FLAGS).U32()}
	})
	if err != nil {
		return nil, fmt.Errorf("look for table inet %s: %w", l.name, err)
	}
	err = c.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
		ch := parseChain(m)
		at := nftTable{ch.family, ch.table}
		ours := ch.family == unix.NFPROTO_INET && (ch.table == l.name || slices.Contains(owner.OtherTables, ch.table))
		if ch.meetsPackets() && !ours && !slices.Contains(l.beside, at) {
			l.beside = append(l.beside, at)
		}
		switch {
		case ch.family == unix.NFPROTO_INET && ch.table == l.name:
			l.chains = append(l.chains, ch)
		case ch.family == unix.NFPROTO_INET && slices.Contains(owner.OtherTables, ch.table):
			if !slices.Contains(l.others, at) {
				l.others = append(l.others, at)
			}
		case at.isIptables() && owner.OwnsChain(ch.name):
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
	// The lists are consistent only if there was no transaction meanwhile.
	if now, err := c.generation(); err != nil || now != l.generation {
		return nil, cmp.Or(err, nfnetlink.ErrInterrupted)
	}
	return l, nil
}

func (c *nlConn) generation() (id uint32, err error) {
	err = c.Request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
		id = m.Attr(unix.NFTA_GEN_ID).U32()
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	return id, nil
}

func parseChain(m nfnetlink.Message) liveChain {
	policy, hook := m.Attr(unix.NFTA_CHAIN_POLICY), m.Attr(unix.NFTA_CHAIN_HOOK)
	return liveChain{
		family: m.Family, table: m.Text(unix.NFTA_CHAIN_TABLE), name: m.Text(unix.NFTA_CHAIN_NAME), typ: m.Text(unix.NFTA_CHAIN_TYPE),
		hook:     hook.Attr(unix.NFTA_HOOK_HOOKNUM).U32(),
		priority: int32(hook.Attr(unix.NFTA_HOOK_PRIORITY).U32()), //nolint:gosec // two's complement
		drops:    policy.Data != nil && policy.U32() != nfAccept,
	}
}

// meetsPackets reports whether it is a base chain at a hook at which rules of ours are.
func (c *liveChain) meetsPackets() bool {
	inet := c.family == unix.NFPROTO_INET || c.family == unix.NFPROTO_IPV4 || c.family == unix.NFPROTO_IPV6
	return inet && c.typ != "" && (c.hook == unix.NF_INET_PRE_ROUTING || c.hook == unix.NF_INET_LOCAL_OUT)
}

func (c *nlConn) readRules(family byte, table string, fn func(liveRule)) error {
	err := c.Request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family, func(w *nfnetlink.Writer) {
		w.Text(unix.NFTA_RULE_TABLE, table)
	}, func(m nfnetlink.Message) {
		r := parseLiveRule(m)
		// Old kernels do not filter by table.
		if r.at() == (nftTable{family, table}) {
			fn(r)
		}
	})
	if err != nil {
		return fmt.Errorf("list rules of table %s: %w", table, err)
	}
	return nil
}

func parseLiveRule(m nfnetlink.Message) liveRule {
	r := liveRule{
		family: m.Family, table: m.Text(unix.NFTA_RULE_TABLE), chain: m.Text(unix.NFTA_RULE_CHAIN),
		exprs: bytes.Clone(m.Attr(unix.NFTA_RULE_EXPRESSIONS).Data),
	}
	for _, b := range m.Attr(unix.NFTA_RULE_HANDLE).Data {
		r.handle = r.handle<<8 | uint64(b)
	}
	if d := m.Attr(unix.NFTA_RULE_USERDATA).Data; len(d) > 2 && d[0] == udataRuleComment && int(d[1]) == len(d)-2 {
		r.comment = string(d[2 : len(d)-1])
	}
	return r
}

func (c *nlConn) readTable(l *nftLive) error {
	if err := c.readRules(unix.NFPROTO_INET, l.name, func(r liveRule) { l.rules = append(l.rules, r) }); err != nil {
		return err
	}
	at := nftTable{unix.NFPROTO_INET, l.name}
	sets, err := c.listSets(at.family, func(t nftTable) bool { return t == at })
	if err != nil {
		return err
	}
	for _, name := range sets[at] {
		s := liveSet{name: name}
		if err := c.readElements(at, name, ownWeight, s.parseElements); err != nil {
			return err
		}
		l.sets = append(l.sets, s)
	}
	return nil
}

// listSets returns the names of the sets in the tables that are chosen.
func (c *nlConn) listSets(family byte, choose func(nftTable) bool) (map[nftTable][]string, error) {
	sets := map[nftTable][]string{}
	err := c.Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, family, nil, func(m nfnetlink.Message) {
		if t := (nftTable{m.Family, m.Text(unix.NFTA_SET_TABLE)}); choose(t) {
			sets[t] = append(sets[t], m.Text(unix.NFTA_SET_NAME))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	return sets, nil
}

// ownWeight is the cost of a byte of the elements of a set of our own table, which no program of iptables reads, in bytes of rules: what is
// kept of an element takes as much memory again. The most that we write, 100,000 prefixes of IPv6, are 9 MB.
const ownWeight = 2

// readElements counts a set's elements by their weight: ownWeight, or setWeight.
func (c *nlConn) readElements(t nftTable, set string, weight int, fn func(nfnetlink.Message)) error {
	err := c.Request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, t.family, func(w *nfnetlink.Writer) {
		w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
		w.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(m nfnetlink.Message) {
		c.Count(weight * len(m.Attrs))
		fn(m)
	})
	if err != nil {
		return fmt.Errorf("list elements of set %q: %w", set, err)
	}
	return nil
}

func (s *liveSet) parseElements(m nfnetlink.Message) {
	for elem := range nfnetlink.Attrs(m.Attr(unix.NFTA_SET_ELEM_LIST_ELEMENTS).Data) {
		s.elements = append(s.elements, setElement{
			key: bytes.Clone(elem.Attr(unix.NFTA_SET_ELEM_KEY).Attr(unix.NFTA_DATA_VALUE).Data),
			end: elem.Attr(unix.NFTA_SET_ELEM_FLAGS).U32()&unix.NFT_SET_ELEM_INTERVAL_END != 0,
		})
	}
}

// readLeads finds the rules that jump to the leftovers.
func (c *nlConn) readLeads(l *nftLive) error {
	ours := map[nftTable]map[string]bool{}
	var tables []nftTable // in order
	for _, ch := range l.leftovers {
		t := nftTable{ch.family, ch.table}
		if ours[t] == nil {
			ours[t] = map[string]bool{}
			tables = append(tables, t)
		}
		ours[t][ch.name] = true
	}
	for _, t := range tables {
		err := c.readRules(t.family, t.name, func(r liveRule) {
			if !ours[t][r.chain] && ours[t][jumpOf(r.exprs)] {
				l.leads = append(l.leads, r)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// parseExprs calls fn with the name and the attributes of each expression.
func parseExprs(b []byte, fn func(name string, data nfnetlink.Attr)) {
	for elem := range nfnetlink.Attrs(b) {
		fn(elem.Attr(unix.NFTA_EXPR_NAME).Text(), elem.Attr(unix.NFTA_EXPR_DATA))
	}
}

// jumpOf returns the chain that a rule jumps or goes to.
func jumpOf(b []byte) (chain string) {
	parseExprs(b, func(name string, data nfnetlink.Attr) {
		if name == "immediate" {
			to := data.Attr(unix.NFTA_IMMEDIATE_DATA).Attr(unix.NFTA_DATA_VERDICT).Attr(unix.NFTA_VERDICT_CHAIN)
			chain = cmp.Or(to.Text(), chain)
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

// canonical returns the same string for expressions that do the same. What we send and what the kernel returns differ
// in the order of attributes, their flags and in explicit defaults. A set is compared by its elements.
func canonical(b []byte, set func(name string) string) string {
	out := make([]byte, 0, 2*len(b))
	parseExprs(b, func(name string, data nfnetlink.Attr) {
		attrs := slices.Collect(nfnetlink.Attrs(data.Data))
		slices.SortStableFunc(attrs, func(a, b nfnetlink.Attr) int { return cmp.Compare(a.Typ, b.Typ) })
		out = append(out, name...)
		for _, a := range attrs {
			isNested := slices.Contains(nested[name], a.Typ)
			if !isNested && len(a.Data) == 4 && a.U32() == 0 {
				continue // the default of every such attribute
			}
			out = append(strconv.AppendUint(append(out, ' '), uint64(a.Typ), 10), '=')
			switch {
			case isNested:
				for v := range nfnetlink.Attrs(a.Data) {
					out = appendData(out, v)
				}
			case name == "lookup" && a.Typ == unix.NFTA_LOOKUP_SET:
				out = append(out, set(a.Text())...)
			default:
				out = hex.AppendEncode(out, a.Data)
			}
		}
		out = append(out, '\n')
	})
	return string(out)
}

func appendData(out []byte, a nfnetlink.Attr) []byte {
	if a.Typ != unix.NFTA_DATA_VERDICT {
		return hex.AppendEncode(out, a.Data)
	}
	code, chain := a.Attr(unix.NFTA_VERDICT_CODE), a.Attr(unix.NFTA_VERDICT_CHAIN)
	return append(append(hex.AppendEncode(out, code.Data), ':'), chain.Text()...)
}

// interval is the values from first to last.
type interval struct{ first, last []byte }

// intervals returns a set's values in order. It leaves out interval ends that end nothing, such as nft's before the first interval.
// The last interval has no end when it goes on to the last value there is.
func intervals(elements []setElement) (all []interval) {
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
	single := !slices.ContainsFunc(elements, func(e setElement) bool { return e.end })
	for i, e := range elements {
		switch {
		case e.end:
		case single:
			all = append(all, interval{e.key, e.key})
		case i+1 < len(elements):
			all = append(all, interval{e.key, before(elements[i+1].key)})
		default:
			all = append(all, interval{e.key, bytes.Repeat([]byte{0xff}, len(e.key))})
		}
	}
	return all
}

// before is the value before b, which is not 0.
func before(b []byte) []byte {
	out := bytes.Clone(b)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]--; out[i] != 0xff {
			break
		}
	}
	return out
}

// canonicalElements is the same text for elements that are the same values, and a short one: every rule with the set has it, and whoever
// writes rules in the pod's namespace may write any number of them.
func canonicalElements(elements []setElement) string {
	h := sha256.New()
	for _, v := range intervals(elements) {
		_, _ = h.Write(append(append([]byte{byte(len(v.first))}, v.first...), v.last...)) // a hash's Write never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}
