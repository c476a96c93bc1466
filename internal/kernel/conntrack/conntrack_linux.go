package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// From linux/netfilter/nf_conntrack_common.h and nf_conntrack_tcp.h.
const (
	ipsSeenReply, ipsAssured, ipsConfirmed, ipsDstNAT = 1 << 1, 1 << 2, 1 << 3, 1 << 5
	tcpSynSent, tcpSynRecv, tcpEstablished            = 1, 2, 3
	tcpBeLiberal                                      = 0x08
	tcpFlagsOriginal, tcpFlagsReply                   = 4, 5 // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, _REPLY
)

// The kernel's defaults of how long it keeps what it hears nothing of, in seconds: net.netfilter.nf_conntrack_tcp_timeout_established
// and _syn_sent. Each packet sets the time anew, to what the namespace has.
const (
	keepOpen  = 5 * 24 * 3600
	keepBegun = 120
)

// Table is the connection tracking of a namespace, while rules come or go. Make one with [Open].
type Table struct {
	conn nfnetlink.Conn
	ns   *netnsexec.NetNS
	// tracks names the table of nftables that makes the namespace track connections; empty: none does.
	tracks string
}

// Open opens the namespace's connection tracking. Close it.
func Open(ns *netnsexec.NetNS) (*Table, error) {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open the connection tracking of network namespace %s: %w", ns.ID(), err)
	}
	t := &Table{conn: nfnetlink.Conn{FD: fd}, ns: ns}
	t.conn.Setup()
	return t, nil
}

// answers bounds what is read of the answers to a request that changes something, in bytes.
const answers = 1 << 20

// tableOwner is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h.
const tableOwner = 2

// Track has the namespace, by a table of nftables of that name, track connections from now until Close. A rule that asks for a connection's state is enough, in a chain
// that no packet passes. Its table belongs to the socket, so that the kernel removes it if this process dies. Without Linux 5.12
// or without nftables that cannot be, and the error is errors.ErrUnsupported.
func (t *Table) Track(table string) error {
	t.conn.Seq++
	w := nfnetlink.Writer{Seq: t.conn.Seq}
	add := func(msg uint16, attrs func()) {
		w.Begin(nfnetlink.TypeOf(msg), unix.NLM_F_REQUEST|unix.NLM_F_CREATE, unix.NFPROTO_INET, 0)
		attrs()
		w.End()
	}
	w.BeginBatch(0)
	add(unix.NFT_MSG_NEWTABLE, func() {
		w.Text(unix.NFTA_TABLE_NAME, table)
		w.U32(unix.NFTA_TABLE_FLAGS, tableOwner)
	})
	add(unix.NFT_MSG_NEWCHAIN, func() {
		w.Text(unix.NFTA_CHAIN_TABLE, table)
		w.Text(unix.NFTA_CHAIN_NAME, "tracks")
	})
	add(unix.NFT_MSG_NEWRULE, func() {
		w.Flag(unix.NLM_F_APPEND)
		w.Text(unix.NFTA_RULE_TABLE, table)
		w.Text(unix.NFTA_RULE_CHAIN, "tracks")
		w.Nest(unix.NFTA_RULE_EXPRESSIONS)
		w.Expr("ct", func() {
			w.U32(unix.NFTA_CT_KEY, unix.NFT_CT_STATE)
			w.U32(unix.NFTA_CT_DREG, unix.NFT_REG_1)
		})
		w.Close()
	})
	t.conn.Begin(answers)
	err := t.conn.Commit(w.B, w.EndBatch())
	if err != nil {
		return fmt.Errorf("track the connections of network namespace %s: %w: %w", t.ns.ID(), errors.ErrUnsupported, err)
	}
	t.tracks = table
	return nil
}

// Close ends what Track began. Until the kernel has let go of its table takes some 10 ms, for which nobody waits.
func (t *Table) Close() {
	if t.tracks != "" {
		t.conn.Seq++
		w := nfnetlink.Writer{Seq: t.conn.Seq}
		w.BeginBatch(0)
		w.Begin(nfnetlink.TypeOf(unix.NFT_MSG_DELTABLE), unix.NLM_F_REQUEST, unix.NFPROTO_INET, 0)
		w.Text(unix.NFTA_TABLE_NAME, t.tracks)
		w.End()
		t.conn.Begin(answers)
		_ = t.conn.Commit(w.B, w.EndBatch()) // closing the socket removes it too
	}
	fd := t.conn.FD
	go func() { _ = unix.Close(fd) }()
}

// atOnce bounds the entries of one message to the kernel: what it answers has to fit the socket's buffer.
const atOnce = 64

// Adopt makes an entry for each of the connections that has none, so that rules of table nat leave it alone. Those within the
// namespace's loopback need none.
func (t *Table) Adopt(connections []listeners.Connection) error {
	own := slices.DeleteFunc(slices.Clone(connections), func(c listeners.Connection) bool {
		return c.Listener() || c.Remote.Addr().IsLoopback() || !c.Remote.IsValid() || c.Remote.Port() == 0
	})
	for some := range slices.Chunk(own, atOnce) {
		t.conn.Seq++
		w := nfnetlink.Writer{Seq: t.conn.Seq}
		for _, c := range some {
			writeEntry(&w, c)
		}
		t.conn.Seq = w.Seq
		if err := t.do(w.B, unix.EEXIST); err != nil {
			return fmt.Errorf("make connections known to the connection tracking of network namespace %s: %w", t.ns.ID(), err)
		}
	}
	return nil
}

// do sends requests, and returns the first error among the answers that is not the expected one.
func (t *Table) do(requests []byte, expected unix.Errno) (failed error) {
	if err := t.conn.Send(requests); err != nil {
		return err
	}
	for t.conn.Begin(answers); ; {
		err := t.conn.Receive(func(m nfnetlink.Message) error {
			if m.Typ == unix.NLMSG_ERROR {
				if err := m.Errno(); err != nil && !errors.Is(err, expected) && failed == nil {
					failed = err
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, unix.EAGAIN):
			return failed
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return err
		}
	}
}

func familyOf(f ruleset.Family) byte {
	if f == ruleset.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

const typeConntrack = unix.NFNL_SUBSYS_CTNETLINK << 8

// writeEntry writes the entry of a connection. Conntrack knows nothing of the windows, so it is told to be liberal about them.
func writeEntry(w *nfnetlink.Writer, c listeners.Connection) {
	from, to := c.Local, c.Remote
	if c.Inbound {
		from, to = to, from
	}
	status, state, keep := uint32(ipsConfirmed|ipsSeenReply|ipsAssured), byte(tcpEstablished), uint32(keepOpen)
	switch {
	case c.SynSent():
		status, state, keep = ipsConfirmed, tcpSynSent, keepBegun
	case !c.Established():
		status, state, keep = ipsConfirmed|ipsSeenReply, tcpSynRecv, keepBegun
	}
	src, dst := uint16(nl.CTA_IP_V4_SRC), uint16(nl.CTA_IP_V4_DST)
	if c.Family() == ruleset.IPv6 {
		src, dst = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := func(typ uint16) {
		w.Nest(typ)
		w.Nest(nl.CTA_TUPLE_IP)
		w.Attr(src, from.Addr().AsSlice()...)
		w.Attr(dst, to.Addr().AsSlice()...)
		w.Close()
		w.Nest(nl.CTA_TUPLE_PROTO)
		w.Attr(nl.CTA_PROTO_NUM, unix.IPPROTO_TCP)
		w.Attr(nl.CTA_PROTO_SRC_PORT, nfnetlink.BE16(from.Port())...)
		w.Attr(nl.CTA_PROTO_DST_PORT, nfnetlink.BE16(to.Port())...)
		w.Close()
		w.Close()
		from, to = to, from
	}
	w.Begin(typeConntrack|nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL, familyOf(c.Family()), 0)
	tuple(nl.CTA_TUPLE_ORIG)
	tuple(nl.CTA_TUPLE_REPLY)
	w.U32(nl.CTA_STATUS, status)
	w.U32(nl.CTA_TIMEOUT, keep)
	w.Nest(nl.CTA_PROTOINFO)
	w.Nest(nl.CTA_PROTOINFO_TCP)
	w.Attr(nl.CTA_PROTOINFO_TCP_STATE, state)
	w.Attr(tcpFlagsOriginal, tcpBeLiberal, tcpBeLiberal)
	w.Attr(tcpFlagsReply, tcpBeLiberal, tcpBeLiberal)
	w.Close()
	w.Close()
	w.End()
}

// limits bounds one call of [Table.ForgetDatagrams] for each family: a pod may have any number of entries, and make more meanwhile.
type limits struct {
	bytes   int           // that are read of one list
	held    int           // entries of a list that are removed, before it is asked for again
	lists   int           // that are asked for
	timeout time.Duration // of all of it
}

// most is far more than a pod has that does not try to hold up others: 64 MiB are some 200,000 entries, nearly what a kernel tracks by
// default, and DNS queries of 30 s are some hundred.
var most = limits{bytes: 64 << 20, held: 4096, lists: 8, timeout: 2 * time.Second}

// ErrMany says that a namespace has, or makes, more entries than are removed.
var ErrMany = errors.New("more datagrams are redirected than are looked at")

// ForgetDatagrams removes the entries by which datagrams, of sockets that go on to ask, are sent to the port. With answered it keeps
// those of which no answer was seen, and returns how many there are. It is bounded in time and memory: beyond that the error is [ErrMany]
// or [nfnetlink.ErrLong], and those that were found are removed.
func (t *Table) ForgetDatagrams(port uint16, answered bool) (kept int, err error) {
	return t.forgetWithin(most, port, answered)
}

func (t *Table) forgetWithin(l limits, port uint16, answered bool) (kept int, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		n, err := t.forgetDatagrams(l, family, port, answered)
		if err != nil {
			return 0, fmt.Errorf("end the redirection of datagrams in network namespace %s: %w", t.ns.ID(), err)
		}
		kept += n
	}
	return kept, nil
}

func (t *Table) forgetDatagrams(l limits, family byte, port uint16, answered bool) (kept int, err error) {
	until := time.Now().Add(l.timeout)
	for range l.lists {
		requests, kept, all, err := t.datagrams(l, family, port, answered)
		for some := range slices.Chunk(requests, atOnce) {
			if removeErr := t.do(slices.Concat(some...), unix.ENOENT); removeErr != nil {
				return 0, removeErr
			}
			if time.Now().After(until) {
				return 0, fmt.Errorf("%w within %s", ErrMany, l.timeout)
			}
		}
		if err != nil || all {
			return kept, err
		}
	}
	return 0, fmt.Errorf("%w: %d", ErrMany, l.lists*l.held)
}

// datagrams lists the entries, as requests to remove them, and says whether these are all.
func (t *Table) datagrams(l limits, family byte, port uint16, answered bool) (requests [][]byte, kept int, all bool, err error) {
	t.conn.Seq++
	w := nfnetlink.Writer{Seq: t.conn.Seq}
	w.Begin(typeConntrack|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, family, 0)
	w.End()
	if err := t.conn.Send(w.B); err != nil {
		return nil, 0, false, err
	}
	asked, all := t.conn.Seq, true
	t.conn.Begin(l.bytes)
	// The list is read to its end even when no more of it is held: until then the kernel takes no other request for one.
	for done := false; !done; {
		receiveErr := t.conn.Receive(func(m nfnetlink.Message) error {
			switch {
			case m.Seq != asked:
			case m.Typ == unix.NLMSG_DONE, m.Typ == unix.NLMSG_ERROR:
				done, err = true, m.Errno()
			default:
				switch to, replied := sentTo(m, port); {
				case to && (replied || !answered) && len(requests) == l.held:
					all = false
				case to && (replied || !answered):
					t.conn.Seq++
					remove := nfnetlink.Writer{Seq: t.conn.Seq}
					removeEntry(&remove, family, m)
					requests = append(requests, remove.B)
				case to:
					kept++
				}
			}
			return nil
		})
		switch {
		case errors.Is(receiveErr, unix.ENOBUFS):
			all = false // an entry may have been left out
		case receiveErr != nil:
			return requests, kept, false, receiveErr
		}
	}
	return requests, kept, all, err
}

// sentTo reports whether an entry is that of datagrams which are redirected to the port, and whether one came back.
func sentTo(m nfnetlink.Message, port uint16) (to, replied bool) {
	proto := m.Attr(nl.CTA_TUPLE_REPLY).Attr(nl.CTA_TUPLE_PROTO)
	kind, from := proto.Attr(nl.CTA_PROTO_NUM).Data, proto.Attr(nl.CTA_PROTO_SRC_PORT).Data
	status := m.Attr(nl.CTA_STATUS).U32()
	return len(kind) == 1 && kind[0] == unix.IPPROTO_UDP && len(from) == 2 && binary.BigEndian.Uint16(from) == port &&
		status&ipsDstNAT != 0, status&ipsSeenReply != 0
}

// removeEntry names an entry by what tells it from others.
func removeEntry(w *nfnetlink.Writer, family byte, m nfnetlink.Message) {
	w.Begin(typeConntrack|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_REQUEST, family, 0)
	for _, typ := range []uint16{nl.CTA_TUPLE_ORIG, nl.CTA_ZONE, nl.CTA_ID} {
		if a := m.Attr(typ); len(a.Data) > 0 {
			if a.Nested || typ == nl.CTA_TUPLE_ORIG {
				typ |= unix.NLA_F_NESTED
			}
			w.Attr(typ, a.Data...)
		}
	}
	w.End()
}
