//go:build linux

package rtnetlink

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
)

// Handed is an interface of a pod whose packets netfilter does not see.
type Handed struct {
	// Link is the interface's name, and To what takes its packets. Without a Link the addresses are on no interface at all: To has them.
	Link, To string
	// Unsure: what takes them may give them back.
	Unsure bool
}

// maxLinks bounds the interfaces that are looked at, and maxHanded those that are named.
const maxLinks, maxHanded = 512, 8

type link struct {
	index, master, parent int // of this namespace; 0: none
	name, kind            string
	up, tap, bpf          bool
}

// Handed returns the interfaces of a namespace whose ingress is handed on, before netfilter sees it: by tc to another interface but an ifb,
// by a bridge to a machine's tap, or to a macvtap. Only the interfaces that have one of the addresses, or are ports of a bridge that has, are
// looked at if all of the addresses are on such; else all are: a machine's may have been taken from its interface.
func (c *Conn) Handed(addrs []netip.Addr) (all []Handed, err error) {
	links, err := c.links()
	if err != nil {
		return nil, err
	}
	holds, err := c.holders(addrs)
	if err != nil {
		return nil, err
	}
	rest := slices.Clone(addrs)
	own := map[int]bool{}
	for a, l := range holds {
		if i := slices.IndexFunc(links, func(k link) bool { return k.index == l && k.kind != "dummy" && k.kind != "ifb" }); i >= 0 {
			rest = slices.DeleteFunc(rest, func(r netip.Addr) bool { return r.Unmap() == a })
			own[l] = true
		}
	}
	for _, l := range links {
		if len(addrs) > 0 && len(rest) == 0 && !own[l.index] && !own[l.master] {
			continue
		}
		h, err := c.handed(l, links, own)
		if err != nil {
			return nil, err
		}
		if h != (Handed{}) && len(all) < maxHanded {
			all = append(all, h)
		}
	}
	// Without any interface that is up nothing comes in at all, or nobody has told which addresses those of the pod will be.
	if len(addrs) > 0 && len(holds) == 0 && len(all) == 0 && slices.ContainsFunc(links, func(k link) bool { return k.up }) {
		all = append(all, Handed{To: "a network stack of its own"})
	}
	return all, nil
}

// handed looks at an interface.
func (c *Conn) handed(l link, links []link, own map[int]bool) (h Handed, err error) {
	h.Link = l.name
	for _, other := range links {
		switch {
		case l.master == 0 || other.index != l.master:
		case other.kind == "openvswitch":
			h.To, h.Unsure = "a switch, "+other.name, true
		case other.kind == "bridge" && !l.tap:
			machines := slices.ContainsFunc(links, func(k link) bool { return k.master == other.index && k.tap })
			addressed := false
			err := c.addrs(unix.AF_UNSPEC, other.index, func(_ int, a netip.Addr) bool { addressed = a.IsGlobalUnicast(); return !addressed })
			if err != nil {
				return Handed{}, err
			}
			if !addressed || machines && own[other.index] {
				return Handed{Link: l.name, To: "the ports of a bridge, " + other.name}, nil
			}
		}
	}
	macvtap := func(k link) bool {
		return (k.kind == "macvtap" || k.kind == "ipvtap") && (k.index == l.index || k.parent == l.index)
	}
	if i := slices.IndexFunc(links, macvtap); i >= 0 {
		return Handed{Link: l.name, To: "a machine, by the " + links[i].kind + " " + links[i].name}, nil
	}
	if l.bpf {
		h.To, h.Unsure = "an XDP program", true
	}
	filtered, err := c.filtered(l, links)
	if err != nil {
		return Handed{}, err
	}
	if filtered != (Handed{}) && (!filtered.Unsure || h.To == "") {
		h = filtered
	}
	if h.To == "" {
		return Handed{}, nil
	}
	return h, nil
}

// From linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
const (
	sizeofTcMsg                   = 20
	sharedBlock            uint32 = 0xffffffff // TCM_IFINDEX_MAGIC_BLOCK: a filter of several interfaces has no one's index
	ingress                uint32 = 0xfffffff2 // TC_H_CLSACT and TC_H_MIN_INGRESS; ingress qdiscs have the same major number
	tcaKind, tcaOptions           = 1, 2
	mirredParms, mirredLen        = 2, 28
	egressRedirect                = 1
)

// actions returns the attribute with a classifier's actions; 0 for one that is a program of its own, or unknown.
func actions(classifier string) uint16 {
	switch classifier {
	case "u32":
		return 7
	case "matchall":
		return 2
	case "flower", "basic":
		return 3
	case "fw":
		return 4
	}
	return 0
}

// filtered looks at the filters of an interface's ingress.
func (c *Conn) filtered(l link, links []link) (h Handed, err error) {
	body := make([]byte, sizeofTcMsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(l.index)) //nolint:gosec // an index
	binary.NativeEndian.PutUint32(body[12:], ingress)
	err = c.list("filters of "+l.name, unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, body, func(b []byte) bool {
		if len(b) < sizeofTcMsg {
			return true
		}
		if where := binary.NativeEndian.Uint32(b[4:]); where != sharedBlock && int(where) != l.index {
			return true
		}
		if to, unsure := filter(nfnetlink.Attr{Data: b[sizeofTcMsg:]}, links); to != "" {
			h = Handed{Link: l.name, To: to, Unsure: unsure}
		}
		return h.To == "" || h.Unsure
	})
	return h, unless(err, unix.ENOENT, unix.ENODEV, unix.EOPNOTSUPP)
}

// filter tells to what a filter hands packets on, or may if unsure; empty: to nothing.
func filter(attrs nfnetlink.Attr, links []link) (to string, unsure bool) {
	kind := attrs.Attr(tcaKind).Text()
	at := actions(kind)
	if at == 0 {
		return "a program of tc's ingress (" + kind + ")", true
	}
	for action := range nfnetlink.Attrs(attrs.Attr(tcaOptions).Attr(at).Data) {
		switch action.Attr(tcaKind).Text() {
		case "mirred":
			parms := action.Attr(tcaOptions).Attr(mirredParms).Data
			if len(parms) < mirredLen || binary.NativeEndian.Uint32(parms[20:]) != egressRedirect {
				continue // a copy, or what comes in elsewhere in this namespace
			}
			index := int(binary.NativeEndian.Uint32(parms[24:]))
			i := slices.IndexFunc(links, func(k link) bool { return k.index == index })
			switch {
			case i < 0:
				return "other interfaces, by tc", false
			case links[i].kind != "ifb": // which would give them back
				return links[i].name + ", by tc", false
			}
		case "bpf":
			to, unsure = "a program of tc's ingress (bpf)", true
		}
	}
	return to, unsure
}

// links returns the interfaces but loopback ones.
func (c *Conn) links() (links []link, err error) {
	long := false
	body := make([]byte, unix.SizeofIfInfomsg)
	err = c.list("interfaces", unix.RTM_GETLINK, unix.RTM_NEWLINK, body, func(b []byte) bool {
		if len(b) < unix.SizeofIfInfomsg || binary.NativeEndian.Uint32(b[8:])&unix.IFF_LOOPBACK != 0 {
			return true
		}
		l := link{index: int(binary.NativeEndian.Uint32(b[4:])), up: binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0}
		elsewhere := false
		for attr := range nfnetlink.Attrs(b[unix.SizeofIfInfomsg:]) {
			switch attr.Typ {
			case unix.IFLA_IFNAME:
				l.name = attr.Text()
			case unix.IFLA_LINK:
				l.parent = int(u32(attr.Data))
			case unix.IFLA_LINK_NETNSID:
				elsewhere = true
			case unix.IFLA_MASTER:
				l.master = int(u32(attr.Data))
			case unix.IFLA_LINKINFO:
				l.kind = attr.Attr(unix.IFLA_INFO_KIND).Text()
			case unix.IFLA_XDP:
				attached := attr.Attr(unix.IFLA_XDP_ATTACHED).Data
				l.bpf = len(attached) == 1 && attached[0] != 0
			}
		}
		if elsewhere {
			l.parent = 0
		}
		l.tap = l.kind == "tun" && binary.NativeEndian.Uint16(b[2:]) == unix.ARPHRD_ETHER
		// A list that changed meanwhile is read again.
		links = append(slices.DeleteFunc(links, func(k link) bool { return k.index == l.index }), l)
		long = len(links) > maxLinks
		return !long
	})
	if err == nil && long {
		err = fmt.Errorf("list interfaces: %w: it has over %d", nfnetlink.ErrLong, maxLinks)
	}
	return links, err
}

// holders returns the interface that has each of the addresses, of those that are there.
func (c *Conn) holders(want []netip.Addr) (map[netip.Addr]int, error) {
	holds := map[netip.Addr]int{}
	if len(want) == 0 {
		return holds, nil
	}
	err := c.addrs(unix.AF_UNSPEC, 0, func(l int, a netip.Addr) bool {
		if slices.ContainsFunc(want, func(w netip.Addr) bool { return w.Unmap() == a }) {
			holds[a] = l
		}
		return true
	})
	return holds, err
}
