//go:build linux

package rtnetlink

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Change adds an address, a route or a rule, or deletes it.
type Change bool

// Adding one that is there is unix.EEXIST.
const (
	Add    Change = true
	Remove Change = false
)

// Up reports whether a link is up.
func (c *Conn) Up(link int) (up bool, err error) {
	c.begin()
	err = c.once(unix.RTM_GETLINK, unix.NLM_F_ACK, unix.RTM_NEWLINK, linkMessage(link, 0), func(b []byte) bool {
		up = len(b) >= unix.SizeofIfInfomsg && binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0
		return true
	})
	return up, err
}

// SetUp brings a link up.
func (c *Conn) SetUp(link int) error {
	return c.change(unix.RTM_NEWLINK, unix.NLM_F_ACK, linkMessage(link, unix.IFF_UP))
}

// linkMessage is a struct ifinfomsg that changes these flags.
func linkMessage(link int, flags uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(link)) //nolint:gosec // an index
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], flags)
	return b
}

// ChangeAddr adds a single address to a link, or takes it away. One of IPv6 is usable at once (IFA_F_NODAD).
func (c *Conn) ChangeAddr(do Change, link int, a netip.Addr) error {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = unix.AF_INET, byte(a.BitLen())
	if a.Is6() {
		b[0], b[2] = unix.AF_INET6, unix.IFA_F_NODAD
	}
	binary.NativeEndian.PutUint32(b[4:], uint32(link)) //nolint:gosec // an index
	b = appendBytes(b, unix.IFA_LOCAL, a.AsSlice())
	b = appendBytes(b, unix.IFA_ADDRESS, a.AsSlice())
	return c.changed(do, unix.RTM_NEWADDR, b)
}

// ChangeLocal adds the route of a table by which all addresses of a family are the node's own, by a link, or takes it away.
func (c *Conn) ChangeLocal(do Change, family byte, table uint32, link int) error {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[5], b[6], b[7] = family, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL
	b = appendU32(b, unix.RTA_TABLE, table)
	b = appendU32(b, unix.RTA_OIF, uint32(link)) //nolint:gosec // an index
	return c.changed(do, unix.RTM_NEWROUTE, b)
}

// ChangeRule adds a policy rule, or takes one away. A mask of 0 is all bits. With a priority of 0 the kernel chooses one, and takes the
// same rule twice.
func (c *Conn) ChangeRule(do Change, family byte, r Rule) error {
	b := make([]byte, sizeofRuleHdr)
	b[0] = family
	if do == Add {
		b[7] = unix.FR_ACT_TO_TBL
	}
	b = appendU32(b, unix.FRA_TABLE, r.Table)
	b = appendU32(b, unix.FRA_FWMARK, r.Mark)
	if r.Mask != 0 {
		b = appendU32(b, unix.FRA_FWMASK, r.Mask)
	}
	if r.Priority != 0 {
		b = appendU32(b, unix.FRA_PRIORITY, r.Priority)
	}
	return c.changed(do, unix.RTM_NEWRULE, b)
}

// changed sends a request to add; the one to remove has the next number.
func (c *Conn) changed(do Change, add uint16, body []byte) error {
	if do == Remove {
		return c.change(add+1, unix.NLM_F_ACK, body)
	}
	return c.change(add, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

func (c *Conn) change(request, flags uint16, body []byte) error {
	c.begin()
	return c.once(request, flags, 0, body, nil)
}

func appendBytes(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+uint16(len(data))) //nolint:gosec // an address
	b = binary.NativeEndian.AppendUint16(b, typ)
	return append(b, data...)
}
