package nfttest

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Chain is a chain of any table.
type Chain struct {
	Family      uint8 // unix.NFPROTO_IPV4, say
	Table, Name string
	// Jumps has an element for each rule: the chain that it jumps to, or "".
	Jumps []string
}

// Namespace is a network namespace; *netnsexec.NetNS has it.
type Namespace interface{ Do(fn func() error) error }

type header = nl.Nfgenmsg

func message(typ, flags int, family uint8, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags)
	req.AddData(&header{NfgenFamily: family})
	for _, a := range attrs {
		req.AddData(a)
	}
	return req
}

func text(typ int, s string) *nl.RtAttr { return nl.NewRtAttr(typ, nl.ZeroTerminated(s)) }

func nest(typ int, children ...*nl.RtAttr) *nl.RtAttr {
	a := nl.NewRtAttr(typ|unix.NLA_F_NESTED, nil)
	for _, c := range children {
		a.AddChild(c)
	}
	return a
}

func expr(name string, attrs ...*nl.RtAttr) *nl.RtAttr {
	return nest(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nest(unix.NFTA_EXPR_DATA, attrs...))
}

// rule counts, and jumps unless the chain is "".
func rule(c Chain, jump string) *nl.NetlinkRequest {
	exprs := []*nl.RtAttr{expr("counter")}
	if jump != "" {
		target := int32(unix.NFT_JUMP)
		exprs = append(exprs, expr("immediate",
			nl.NewRtAttr(unix.NFTA_IMMEDIATE_DREG, nl.BEUint32Attr(unix.NFT_REG_VERDICT)),
			nest(unix.NFTA_IMMEDIATE_DATA, nest(unix.NFTA_DATA_VERDICT,
				nl.NewRtAttr(unix.NFTA_VERDICT_CODE, nl.BEUint32Attr(uint32(target))), //nolint:gosec // two's complement
				text(unix.NFTA_VERDICT_CHAIN, jump)))))
	}
	return message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, c.Family,
		text(unix.NFTA_RULE_TABLE, c.Table), text(unix.NFTA_RULE_CHAIN, c.Name), nest(unix.NFTA_RULE_EXPRESSIONS, exprs...))
}

// Add makes chains, and their tables, in one transaction.
func Add(ns Namespace, chains ...Chain) error {
	var first, last []*nl.NetlinkRequest
	for _, c := range chains {
		first = append(first,
			message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, c.Family, text(unix.NFTA_TABLE_NAME, c.Table)),
			message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, c.Family, text(unix.NFTA_CHAIN_TABLE, c.Table), text(unix.NFTA_CHAIN_NAME, c.Name)))
		for _, jump := range c.Jumps {
			last = append(last, rule(c, jump))
		}
	}
	begin, end := message(0, 0, 0), message(0, 0, 0)
	for req, typ := range map[*nl.NetlinkRequest]uint16{begin: unix.NFNL_MSG_BATCH_BEGIN, end: unix.NFNL_MSG_BATCH_END} {
		req.Type = typ
		req.Data = []nl.NetlinkRequestData{&header{ResId: nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)}}
	}
	all := slices.Concat([]*nl.NetlinkRequest{begin}, first, last)
	all[len(all)-1].Flags |= unix.NLM_F_ACK
	var batch []byte
	for i, req := range append(all, end) {
		req.Seq = uint32(i) //nolint:gosec // small
		batch = append(batch, req.Serialize()...)
	}
	return ns.Do(func() error { return commit(batch) })
}

func commit(batch []byte) error {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(batch)); err != nil {
		return err
	}
	if err := unix.Sendto(s.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answers, _, err := s.Receive()
	if err != nil {
		return err
	}
	for _, m := range answers {
		if code := int32(nl.NativeEndian().Uint32(m.Data)); m.Header.Type == unix.NLMSG_ERROR && code != 0 { //nolint:gosec // two's complement
			return fmt.Errorf("message %d: %w", m.Header.Seq, unix.Errno(-code))
		}
	}
	return nil
}
