//go:build linux

package apply

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// setConnMark keeps the bits outside the mask, as iptables' --set-xmark does.
func (e exprs) setConnMark(mark, mask uint32) {
	if mask == ruleset.FullMask {
		e.immediate(unix.NFT_REG_1, ne32(mark))
	} else {
		e.load("ct", unix.NFTA_CT_KEY, unix.NFT_CT_MARK, unix.NFTA_CT_DREG)
		e.bitwise(ne32(^mask), ne32(mark))
	}
	e.load("ct", unix.NFTA_CT_KEY, unix.NFT_CT_MARK, unix.NFTA_CT_SREG)
}

func (e exprs) dnat(f ruleset.Family, to netip.AddrPort) {
	e.immediate(unix.NFT_REG_1, to.Addr().AsSlice())
	if to.Port() != 0 {
		e.immediate(unix.NFT_REG_2, be16(to.Port()))
	}
	e.expr("nat", func() {
		e.w.u32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		e.w.u32(unix.NFTA_NAT_FAMILY, uint32(nfProto(f)))
		e.w.u32(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1)
		e.w.u32(unix.NFTA_NAT_REG_ADDR_MAX, unix.NFT_REG_1)
		flags := uint32(natMapIPs)
		if to.Port() != 0 {
			e.w.u32(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2)
			e.w.u32(unix.NFTA_NAT_REG_PROTO_MAX, unix.NFT_REG_2)
			flags |= natPorts
		}
		e.w.u32(unix.NFTA_NAT_FLAGS, flags)
	})
}
