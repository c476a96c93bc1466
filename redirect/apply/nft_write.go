//go:build linux

package apply

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
)

// nftBatch is one transaction, with what each of its messages does.
type nftBatch struct {
	nfnetlink.Writer
	first uint32
	steps []nftStep
}

// nftStep describes a message, for the error when the kernel refuses it.
type nftStep struct {
	what  string // "add rule", with its name or text
	chain *nft.Chain
	rule  *nft.Rule
}

func (s nftStep) String() string {
	if s.rule != nil {
		return fmt.Sprintf("%s to chain %s: %s", s.what, s.chain.Name, s.rule.Text())
	}
	return s.what
}

func newBatch(seq, generation uint32) *nftBatch {
	b := &nftBatch{first: seq}
	b.Seq = seq
	b.B = make([]byte, 0, 16<<10)
	b.step(nftStep{what: "begin transaction"})
	b.BeginBatch(generation)
	return b
}

func (b *nftBatch) step(s nftStep) { b.steps = append(b.steps, s) }

// failed names the message that an error is about.
func (b *nftBatch) failed(seq uint32) nftStep {
	if i := int(seq - b.first); i < len(b.steps) {
		return b.steps[i]
	}
	return nftStep{what: "commit"}
}

func (b *nftBatch) message(msg, flags uint16, family byte, s nftStep, attrs func()) {
	b.step(s)
	b.Begin(nfnetlink.TypeOf(msg), unix.NLM_F_REQUEST|flags, family, 0)
	attrs()
	b.End()
}

// texts is a message whose attributes are strings, of the type first and those after it.
func (b *nftBatch) texts(msg, flags uint16, family byte, what string, first uint16, values ...string) {
	b.message(msg, flags, family, nftStep{what: what}, func() {
		for i, v := range values {
			b.Text(first+uint16(i), v) //nolint:gosec // two at most
		}
	})
}

func (b *nftBatch) addTable(name string) {
	b.texts(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET, "add table inet "+name, unix.NFTA_TABLE_NAME, name)
}

func (b *nftBatch) delTable(t nftTable) {
	b.texts(unix.NFT_MSG_DELTABLE, 0, t.family, "delete table "+t.name, unix.NFTA_TABLE_NAME, t.name)
}

// clear removes all rules and sets of our table, and the chains that are not wanted or differ. Chains that stay keep
// their hook and swap their rules in one step. (A table that is deleted and made anew has two chains in a hook for an
// instant, and a packet could meet the new one before the switch and the old one after it.)
func (b *nftBatch) clear(want *nft.Table, l *nftLive) (kept []string) {
	if len(l.rules) > 0 {
		b.texts(unix.NFT_MSG_DELRULE, 0, unix.NFPROTO_INET, "flush table inet "+l.name, unix.NFTA_RULE_TABLE, l.name)
	}
	for _, s := range l.sets {
		b.texts(unix.NFT_MSG_DELSET, 0, unix.NFPROTO_INET, "delete set "+s.name, unix.NFTA_SET_TABLE, l.name, s.name)
	}
	for i := range l.chains {
		c := &l.chains[i]
		if slices.ContainsFunc(want.Chains, c.is) {
			kept = append(kept, c.name)
			continue
		}
		b.delChain(c)
	}
	return kept
}

func (b *nftBatch) delChain(c *liveChain) {
	b.message(unix.NFT_MSG_DELCHAIN, 0, c.family, nftStep{what: "delete chain " + c.table + " " + c.name}, func() {
		b.Text(unix.NFTA_CHAIN_TABLE, c.table)
		b.Text(unix.NFTA_CHAIN_NAME, c.name)
	})
}

// clearElsewhere takes out what the owner has outside our table: what its program did through iptables-nft, and tables of
// another program.
func (b *nftBatch) clearElsewhere(l *nftLive) {
	for _, t := range l.others {
		b.delTable(t)
	}
	for _, r := range l.leads {
		what := nftStep{what: fmt.Sprintf("delete rule %d of chain %s %s", r.handle, r.table, r.chain)}
		b.message(unix.NFT_MSG_DELRULE, 0, r.family, what, func() {
			b.Text(unix.NFTA_RULE_TABLE, r.table)
			b.Text(unix.NFTA_RULE_CHAIN, r.chain)
			b.U64(unix.NFTA_RULE_HANDLE, r.handle)
		})
	}
	for _, c := range l.leftovers {
		b.texts(unix.NFT_MSG_DELRULE, 0, c.family, "flush chain "+c.table+" "+c.name, unix.NFTA_RULE_TABLE, c.table, c.name)
	}
	for i := range l.leftovers {
		b.delChain(&l.leftovers[i])
	}
}

// is reports whether a live chain is the wanted one, rules aside.
func (c *liveChain) is(want nft.Chain) bool {
	if c.name != want.Name || want.Hook == "" {
		return c.name == want.Name && c.typ == ""
	}
	return c.typ == want.Type && c.hook == hookNumbers[want.Hook] && c.priority == want.Priority && !c.drops
}

// Source: enum nf_inet_hooks in linux/netfilter.h.
var hookNumbers = map[string]uint32{"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}

// fill adds the table's contents; kept are the chains that are there.
func (b *nftBatch) fill(t *nft.Table, kept []string) {
	for i := range t.Sets {
		b.addSet(t.Name, &t.Sets[i], uint32(i+1)) //nolint:gosec // a count of sets
	}
	for i := range t.Chains {
		if c := &t.Chains[i]; !slices.Contains(kept, c.Name) {
			b.addChain(t.Name, c)
		}
	}
	for i := range t.Chains {
		c := &t.Chains[i]
		for j := range c.Rules {
			b.addRule(t.Name, c, &c.Rules[j])
		}
	}
}

func (b *nftBatch) addChain(table string, c *nft.Chain) {
	b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFPROTO_INET, nftStep{what: "add chain " + c.Name, chain: c}, func() {
		b.Text(unix.NFTA_CHAIN_TABLE, table)
		b.Text(unix.NFTA_CHAIN_NAME, c.Name)
		if c.Hook == "" {
			return
		}
		b.Nest(unix.NFTA_CHAIN_HOOK)
		b.U32(unix.NFTA_HOOK_HOOKNUM, hookNumbers[c.Hook])
		b.U32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority)) //nolint:gosec // two's complement
		b.Close()
		b.U32(unix.NFTA_CHAIN_POLICY, nfAccept)
		b.Text(unix.NFTA_CHAIN_TYPE, c.Type)
	})
}

func (b *nftBatch) addRule(table string, c *nft.Chain, r *nft.Rule) {
	step := nftStep{what: "add rule", chain: c, rule: r}
	b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFPROTO_INET, step, func() {
		b.Text(unix.NFTA_RULE_TABLE, table)
		b.Text(unix.NFTA_RULE_CHAIN, c.Name)
		b.Nest(unix.NFTA_RULE_EXPRESSIONS)
		writeExprs(&b.Writer, r)
		b.Close()
		if comment := r.KernelComment(); comment != "" {
			data := append([]byte{udataRuleComment, byte(len(comment) + 1)}, comment...)
			b.Attr(unix.NFTA_RULE_USERDATA, append(data, 0)...)
		}
	})
}

// elementsPerMessage keeps a list of elements below the 64 KiB of an attribute: one of IPv6 takes 44 bytes.
const elementsPerMessage = 1000

func (b *nftBatch) addSet(table string, s *nft.Set, id uint32) {
	keyType, keyLen := uint32(typeInetService), uint32(2)
	if len(s.Prefixes) > 0 {
		keyType, keyLen = typeIPAddr, 4
		if s.Prefixes[0].Addr().Is6() {
			keyType, keyLen = typeIP6Addr, 16
		}
	}
	step := nftStep{what: "add set " + s.Name}
	b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, unix.NFPROTO_INET, step, func() {
		b.Text(unix.NFTA_SET_TABLE, table)
		b.Text(unix.NFTA_SET_NAME, s.Name)
		var flags uint32
		if s.Interval() {
			flags = unix.NFT_SET_INTERVAL
		}
		b.U32(unix.NFTA_SET_FLAGS, flags)
		b.U32(unix.NFTA_SET_KEY_TYPE, keyType)
		b.U32(unix.NFTA_SET_KEY_LEN, keyLen)
		b.U32(unix.NFTA_SET_ID, id)
		b.Attr(unix.NFTA_SET_USERDATA, append([]byte{udataSetKeyByteOrder, 4}, nfnetlink.NE32(byteOrderBigEndian)...)...)
	})
	for chunk := range slices.Chunk(setElements(s), elementsPerMessage) {
		step.what = "add elements to set " + s.Name
		b.message(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, unix.NFPROTO_INET, step, func() {
			b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			b.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
			b.U32(unix.NFTA_SET_ELEM_LIST_SET_ID, id)
			b.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for _, e := range chunk {
				b.Nest(unix.NFTA_LIST_ELEM)
				if e.end {
					b.U32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
				}
				b.Nest(unix.NFTA_SET_ELEM_KEY)
				b.Attr(unix.NFTA_DATA_VALUE, e.key...)
				b.Close()
				b.Close()
			}
			b.Close()
		})
	}
}

// setElements gives an interval as its first value and, unless it goes on to the last there is, the one after it.
func setElements(s *nft.Set) []setElement {
	var out []setElement
	interval := s.Interval() // once: it looks at each
	add := func(first, next []byte) {
		out = append(out, setElement{key: first})
		if interval && next != nil {
			out = append(out, setElement{key: next, end: true})
		}
	}
	for _, r := range s.Ports {
		var next []byte
		if r.Last < 65535 {
			next = nfnetlink.BE16(r.Last + 1)
		}
		add(nfnetlink.BE16(r.First), next)
	}
	for _, p := range s.Prefixes {
		var next []byte
		if a := lastOf(p).Next(); a.IsValid() {
			next = a.AsSlice()
		}
		add(p.Addr().AsSlice(), next)
	}
	return out
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i, m := range maskOf(p) {
		b[i] |= ^m
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
