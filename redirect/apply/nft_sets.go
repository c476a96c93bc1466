//go:build linux

package apply

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// chainAt is a chain of nftables.
type chainAt struct {
	nftTable
	chain string
}

// maxOthersChains bounds the chains of others that are listed, beside base chains, of which the kernel has few.
const maxOthersChains = 1000

// liveChains returns the chains of the tables that are chosen, and where each is in the list. Where others have more than are listed, it is a crowd:
// of theirs the base chains alone are there.
func (c *nlConn) liveChains(choose, ours func(nftTable) bool) (found ruleset.LiveChains, at map[chainAt]int, crowd bool, err error) {
	at = map[chainAt]int{}
	var inner []chainAt // others' chains but base chains
	err = c.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
		ch := parseChain(m)
		t := nftTable{ch.family, ch.table}
		if !choose(t) {
			return
		}
		live := ruleset.LiveChain{Table: t.String(), Name: ch.name}
		switch {
		case ch.typ != "":
			live.Hook = ch.declaration()
			live.Policy = live.Hook.Policy
		case ours(t):
		case len(inner) == maxOthersChains:
			crowd = true
			return
		default:
			inner = append(inner, chainAt{t, ch.name})
		}
		at[chainAt{t, ch.name}] = len(found)
		found = append(found, live)
	})
	if err != nil {
		return nil, nil, false, fmt.Errorf("list chains: %w", err)
	}
	if crowd {
		for _, c := range inner {
			delete(at, c)
		}
	}
	return found, at, crowd, nil
}

// declaration is that of a base chain.
func (c *liveChain) declaration() *ruleset.Hook {
	point := fmt.Sprintf("number-%d", c.hook) // of a family without these hooks
	if c.family != unix.NFPROTO_NETDEV && c.family != unix.NFPROTO_ARP && int(c.hook) < len(chains.Builtins) {
		point = strings.ToLower(chains.Builtins[c.hook])
	}
	policy := ruleset.ActionAccept
	if c.drops {
		policy = ruleset.ActionDrop
	}
	return &ruleset.Hook{Type: c.typ, Point: point, Priority: c.priority, Policy: policy.String()}
}

// maxElements bounds the elements of another's set that are read.
const maxElements = 1000

// elements reads the sets that rules name, as nft writes the elements. A set is absent that rules change, and so is a map, or one of
// more than most elements, of which each byte counts for weight bytes of rules.
func (c *nlConn) elements(rules []liveRule, most, weight int) (map[nftTable]map[string][]string, error) {
	keys := map[nftTable]map[string]string{} // what is looked up in each set
	for i := range rules {
		r := &rules[i]
		d := describer{}
		parseExprs(r.exprs, func(name string, data nfnetlink.Attr) {
			if name == "lookup" {
				t := r.at()
				if keys[t] == nil {
					keys[t] = map[string]string{}
				}
				set, key := data.Attr(unix.NFTA_LOOKUP_SET).Text(), d.key
				if old, ok := keys[t][set]; ok && byteOrders[old] != byteOrders[key] || d.mask != nil {
					key = ""
				}
				keys[t][set] = key
			}
			d.expr(name, data)
		})
	}
	all := map[nftTable]map[string][]string{}
	if len(keys) == 0 {
		return all, nil
	}
	shown := map[nftTable][]string{}
	err := c.Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
		t, name := nftTable{m.Family, m.Text(unix.NFTA_SET_TABLE)}, m.Text(unix.NFTA_SET_NAME)
		flags := m.Attr(unix.NFTA_SET_FLAGS).U32()
		if keys[t][name] != "" && flags&^(unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT|unix.NFT_SET_INTERVAL) == 0 {
			shown[t] = append(shown[t], name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	for t, names := range shown {
		all[t] = map[string][]string{}
		for _, name := range names {
			s := liveSet{name: name}
			if err := c.readElements(t, name, weight, s.parseElements); err != nil {
				return nil, err
			}
			if elements := showElements(keys[t][name], s.elements, most); elements != nil {
				all[t][name] = elements
			}
		}
	}
	return all, nil
}

// showElements returns nil for what cannot be shown.
func showElements(key string, elements []setElement, most int) []string {
	if len(elements) == 0 || len(elements) > 2*most {
		return nil
	}
	d := describer{key: key}
	var out []string
	for _, v := range intervals(elements) {
		switch p, ok := prefixOf(v.first, v.last); {
		case bytes.Equal(v.first, v.last):
			out = append(out, d.show(v.first))
		case ok && strings.HasSuffix(key, "addr"):
			out = append(out, p.String())
		default:
			out = append(out, d.show(v.first)+"-"+d.show(v.last))
		}
	}
	if len(out) > most {
		return nil
	}
	return out
}

// prefixOf returns the prefix whose first and last addresses these are.
func prefixOf(first, last []byte) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(first)
	if !ok {
		return netip.Prefix{}, false
	}
	bits := 0
	for i := range first {
		for bit := byte(0x80); bit != 0 && first[i]&bit == last[i]&bit; bit >>= 1 {
			bits++
		}
		if first[i] != last[i] {
			break
		}
	}
	p := netip.PrefixFrom(a, bits)
	for i, mask := range maskOf(p) {
		if first[i]&^mask != 0 || last[i]|mask != 0xff {
			return p, false
		}
	}
	return p, true
}
