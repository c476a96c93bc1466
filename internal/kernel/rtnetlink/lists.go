//go:build linux

package rtnetlink

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
)

// Addrs calls fn with the namespace's addresses of a family, of one link or with 0 of all, until it returns false.
func (c *Conn) Addrs(family byte, link int, fn func(netip.Addr) (more bool)) error {
	return c.addrs(family, link, func(_ int, a netip.Addr) bool { return fn(a) })
}

// addrs calls fn with each address's link too. The family may be AF_UNSPEC, for all.
func (c *Conn) addrs(family byte, link int, fn func(link int, a netip.Addr) (more bool)) error {
	body := make([]byte, unix.SizeofIfAddrmsg)
	body[0] = family
	binary.NativeEndian.PutUint32(body[4:], uint32(link)) //nolint:gosec // an index
	err := c.list("addresses", unix.RTM_GETADDR, unix.RTM_NEWADDR, body, func(b []byte) bool {
		if len(b) < unix.SizeofIfAddrmsg || family != unix.AF_UNSPEC && b[0] != family || link != 0 && int(binary.NativeEndian.Uint32(b[4:])) != link {
			return true
		}
		var a netip.Addr
		local := false
		for attr := range nfnetlink.Attrs(b[unix.SizeofIfAddrmsg:]) {
			// The address of a point-to-point link is the other end's; its own is the local one.
			if attr.Typ == unix.IFA_LOCAL || attr.Typ == unix.IFA_ADDRESS && !local {
				a, _ = netip.AddrFromSlice(attr.Data)
				local = attr.Typ == unix.IFA_LOCAL
			}
		}
		return !a.IsValid() || fn(int(binary.NativeEndian.Uint32(b[4:])), a)
	})
	return unless(err, unix.ENODEV, unix.EAFNOSUPPORT)
}

// From linux/if_link.h and linux/ipv6.h.
const (
	iflaProtinfo, iflaInet6Conf = 12, 2
	devconfDisableIPv6          = 26
)

// AnyIPv6 reports whether IPv6 is on for an interface other than a loopback one. It stops at the first.
func (c *Conn) AnyIPv6() (on bool, err error) {
	body := make([]byte, unix.SizeofIfInfomsg)
	body[0] = unix.AF_INET6 // which leaves out interfaces that cannot have it
	err = c.list("interfaces", unix.RTM_GETLINK, unix.RTM_NEWLINK, body, func(b []byte) bool {
		if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_INET6 || binary.NativeEndian.Uint32(b[8:])&unix.IFF_LOOPBACK != 0 {
			return true
		}
		conf := nfnetlink.Attr{Data: b[unix.SizeofIfInfomsg:]}.Attr(iflaProtinfo).Attr(iflaInet6Conf).Data
		on = len(conf) >= 4*(devconfDisableIPv6+1) && binary.NativeEndian.Uint32(conf[4*devconfDisableIPv6:]) == 0
		return !on
	})
	return on, unless(err, unix.EAFNOSUPPORT)
}

// Held lists the addresses asked for that a namespace has.
type Held struct {
	// Missing are those that it does not have.
	Missing []netip.Addr
	// Others are at most eight that it has beside them, and that are neither a loopback nor a link-local address; More says that
	// there are more. They are complete only where something is missing.
	Others []netip.Addr
	More   bool
}

// maxOthers bounds the addresses that are named of a pod.
const maxOthers = 8

// Has returns the addresses that the namespace has. Without any it reads nothing.
func (c *Conn) Has(want []netip.Addr) (h Held, err error) {
	missing := make(map[netip.Addr]bool, len(want))
	var families [2]bool // IPv4, IPv6
	for _, a := range want {
		a = a.Unmap().WithZone("")
		missing[a] = true
		families[familyIndex(a)] = true
	}
	for i, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if !families[i] {
			continue
		}
		err := c.Addrs(family, 0, func(a netip.Addr) bool {
			switch {
			case missing[a]:
				delete(missing, a)
			case !a.IsGlobalUnicast() || slices.Contains(h.Others, a):
			case len(h.Others) < maxOthers:
				h.Others = append(h.Others, a)
			default:
				h.More = true
			}
			for a := range missing {
				if familyIndex(a) == i {
					return true
				}
			}
			return false
		})
		if err != nil {
			return Held{}, err
		}
	}
	for _, a := range want {
		if missing[a.Unmap().WithZone("")] {
			h.Missing = append(h.Missing, a)
		}
	}
	return h, nil
}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Routes selects the routes of one table, type and link.
type Routes struct {
	Table uint32
	Type  byte
	Link  int
}

// Routes calls fn with the destinations of the routes until it returns false.
func (c *Conn) Routes(family byte, which Routes, fn func(dst netip.Prefix) (more bool)) error {
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[7] = family, which.Type
	body = appendU32(body, unix.RTA_TABLE, which.Table)
	body = appendU32(body, unix.RTA_OIF, uint32(which.Link)) //nolint:gosec // an index
	err := c.list("routes", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, body, func(b []byte) bool {
		if len(b) < unix.SizeofRtMsg || b[0] != family || b[7] != which.Type {
			return true
		}
		table, link, dst := uint32(b[4]), 0, netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			dst = netip.IPv6Unspecified()
		}
		for attr := range nfnetlink.Attrs(b[unix.SizeofRtMsg:]) {
			switch attr.Typ {
			case unix.RTA_TABLE:
				table = u32(attr.Data)
			case unix.RTA_OIF:
				link = int(u32(attr.Data))
			case unix.RTA_DST:
				dst, _ = netip.AddrFromSlice(attr.Data)
			}
		}
		return table != which.Table || link != which.Link || fn(netip.PrefixFrom(dst, int(b[1])))
	})
	return unless(err, unix.ENOENT, unix.ENODEV, unix.EAFNOSUPPORT)
}

// Rule is a policy rule that leads to a table by the packets' mark.
type Rule struct {
	Priority, Mark, Mask, Table uint32
	// Else: it looks at something else too, or does something else.
	Else bool
}

// Rules calls fn with the policy rules, in the order of their priorities, until it returns false. The kernel has no filter
// for them.
func (c *Conn) Rules(family byte, fn func(Rule) (more bool)) error {
	body := make([]byte, sizeofRuleHdr)
	body[0] = family
	err := c.list("policy rules", unix.RTM_GETRULE, unix.RTM_NEWRULE, body, func(b []byte) bool {
		if len(b) < sizeofRuleHdr || b[0] != family {
			return true
		}
		const dstLen, srcLen, tos, table, action, flags = 1, 2, 3, 4, 7, 8
		r := Rule{Table: uint32(b[table]), Else: b[dstLen] != 0 || b[srcLen] != 0 || b[tos] != 0 || b[action] != unix.FR_ACT_TO_TBL ||
			binary.NativeEndian.Uint32(b[flags:])&unix.FIB_RULE_INVERT != 0}
		for attr := range nfnetlink.Attrs(b[sizeofRuleHdr:]) {
			data := attr.Data
			switch attr.Typ {
			case unix.FRA_PRIORITY:
				r.Priority = u32(data)
			case unix.FRA_FWMARK:
				r.Mark = u32(data)
			case unix.FRA_FWMASK:
				r.Mask = u32(data)
			case unix.FRA_TABLE:
				r.Table = u32(data)
			case unix.FRA_IIFNAME, unix.FRA_OIFNAME, unix.FRA_UID_RANGE, unix.FRA_IP_PROTO, unix.FRA_SPORT_RANGE, unix.FRA_DPORT_RANGE, unix.FRA_TUN_ID, unix.FRA_FLOW, unix.FRA_L3MDEV:
				r.Else = true
			}
		}
		return fn(r)
	})
	return unless(err, unix.EAFNOSUPPORT, unix.EOPNOTSUPP)
}

// sizeofRuleHdr is the size of struct fib_rule_hdr in linux/fib_rules.h.
const sizeofRuleHdr = 12

func appendU32(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, v)
}
