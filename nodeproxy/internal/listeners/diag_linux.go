package listeners

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// From linux/inet_diag.h and net/tcp_states.h.
const (
	reqSize, msgSize = 56, 72
	skV6Only         = 11 // INET_DIAG_SKV6ONLY
	stateTimeWait    = 6  // TCP_TIME_WAIT
	stateClose       = 7  // TCP_CLOSE, which is the state of a UDP socket that is not connected
	statesAll        = 1<<12 - 2
	// oldRequest is TCPDIAG_GETSOCK, with a struct inet_diag_req: the only request whose answer has both address families.
	oldRequest, oldSize = 18, 60
)

// List returns the namespace's sockets that listen for TCP connections and those that receive datagrams from anybody, on any
// of the ports.
func List(ns *netnsexec.NetNS, ports map[uint16]bool) (sockets []Socket, err error) {
	keep := func(m message, udp bool) {
		if s := m.socket(udp); ports[s.Port] {
			sockets = append(sockets, s)
		}
	}
	err = diagnose(ns, func(d *diag) (err error) {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			if err == nil {
				err = d.sockets(family, unix.IPPROTO_TCP, stateListen, func(m message) { keep(m, false) })
			}
			if err == nil {
				err = d.sockets(family, unix.IPPROTO_UDP, stateClose, func(m message) { keep(m, true) })
			}
		}
		return err
	})
	return sockets, err
}

// Connections returns the namespace's TCP connections, also those that are being made or closed. What only waits for late packets
// of a connection that has ended is none.
//
// The kernel looks for them in a table of all namespaces, which takes most of a millisecond, so it is asked once.
func Connections(ns *netnsexec.NetNS) (all []Connection, err error) {
	listening := map[uint16]bool{}
	err = diagnose(ns, func(d *diag) error {
		body := make([]byte, oldSize)
		binary.NativeEndian.PutUint32(body[52:], statesAll&^(1<<stateTimeWait|1<<stateClose))
		return d.dump(oldRequest, body, func(m message) {
			c := m.connection()
			if c.State == stateListen {
				listening[c.Local.Port()] = true
			}
			if c.State != stateListen || c.Queued > 0 {
				all = append(all, c)
			}
		})
	})
	for i := range all {
		all[i].Inbound = listening[all[i].Local.Port()]
	}
	return all, err
}

// diagnose opens a socket for questions about the namespace's sockets.
func diagnose(ns *netnsexec.NetNS, fn func(*diag) error) error {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		err = fn(&diag{fd: fd, buf: make([]byte, 1<<15)})
	}
	if err != nil {
		return fmt.Errorf("list the sockets of network namespace %s: %w", ns.ID(), err)
	}
	return nil
}

type diag struct {
	fd  int
	seq uint32
	buf []byte
}

// sockets asks for all sockets of a family and protocol in the state (struct inet_diag_req_v2).
func (d *diag) sockets(family, proto byte, state int, each func(message)) error {
	body := make([]byte, reqSize)
	body[0], body[1] = family, proto
	binary.NativeEndian.PutUint32(body[4:], 1<<state)
	return d.dump(unix.SOCK_DIAG_BY_FAMILY, body, each)
}

// dump asks for a list.
func (d *diag) dump(kind uint16, body []byte, each func(message)) error {
	d.seq++
	req := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(req[0:], uint32(cap(req))) //nolint:gosec // under 100
	binary.NativeEndian.PutUint16(req[4:], kind)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(req[8:], d.seq)
	req = append(req, body...)
	if err := unix.Sendto(d.fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask the kernel: %w", err)
	}
	for {
		n, _, err := unix.Recvfrom(d.fd, d.buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read the kernel's answer: %w", err)
		case n > len(d.buf):
			return fmt.Errorf("the kernel's answer has %d bytes, of at most %d", n, len(d.buf))
		}
		if done, err := d.messages(d.buf[:n], each); done || err != nil {
			return err
		}
	}
}

// messages reads the messages of one packet, and reports whether the last of the dump was among them.
func (d *diag) messages(text []byte, each func(message)) (done bool, err error) {
	for len(text) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(text))
		if size < unix.NLMSG_HDRLEN || size > len(text) {
			return false, errors.New("malformed answer of the kernel")
		}
		body := text[unix.NLMSG_HDRLEN:size]
		kind, flags := binary.NativeEndian.Uint16(text[4:]), binary.NativeEndian.Uint16(text[6:])
		switch {
		case binary.NativeEndian.Uint32(text[8:]) != d.seq: // of an earlier dump
		case flags&unix.NLM_F_DUMP_INTR != 0:
			return false, errors.New("the sockets changed while they were listed")
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errors.New("malformed error of the kernel")
			}
			errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
			if errno == unix.ENOENT { // the kernel has no such family or protocol
				return true, nil
			}
			return false, errno
		default:
			if m := message(body); m.valid() {
				each(m)
			}
		}
		text = text[min(len(text), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false, nil
}

// message is a struct inet_diag_msg and its attributes.
type message []byte

func (m message) valid() bool {
	return len(m) >= msgSize && (m[0] == unix.AF_INET || m[0] == unix.AF_INET6)
}

// addr reads an address of the socket's family.
func (m message) addr(at int) netip.Addr {
	if m[0] == unix.AF_INET {
		return netip.AddrFrom4([4]byte(m[at:]))
	}
	return netip.AddrFrom16([16]byte(m[at:]))
}

func (m message) connection() Connection {
	return Connection{
		Local:  netip.AddrPortFrom(m.addr(8).Unmap(), binary.BigEndian.Uint16(m[4:])),
		Remote: netip.AddrPortFrom(m.addr(24).Unmap(), binary.BigEndian.Uint16(m[6:])),
		State:  m[1], Orphan: binary.NativeEndian.Uint32(m[68:]) == 0, Queued: binary.NativeEndian.Uint32(m[56:]),
	}
}

func (m message) socket(udp bool) Socket {
	s := Socket{UDP: udp, Port: binary.BigEndian.Uint16(m[4:]), Addr: m.addr(8)}
	for attrs := m[msgSize:]; len(attrs) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofRtAttr || size > len(attrs) {
			break
		}
		if binary.NativeEndian.Uint16(attrs[2:]) == skV6Only && size > unix.SizeofRtAttr {
			s.V6Only = attrs[unix.SizeofRtAttr] != 0
		}
		attrs = attrs[min(len(attrs), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return s
}
