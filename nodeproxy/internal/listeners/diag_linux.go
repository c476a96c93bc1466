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
	stateClose       = 7  // TCP_CLOSE, which is the state of a UDP socket that is not connected
	stateListen      = 10 // TCP_LISTEN
)

// List returns the namespace's sockets that listen for TCP connections and those that receive datagrams from anybody, on any
// of the ports.
func List(ns *netnsexec.NetNS, ports map[uint16]bool) (sockets []Socket, err error) {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		d := diag{fd: fd, buf: make([]byte, 1<<15)}
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			for _, udp := range []bool{false, true} {
				if err == nil {
					err = d.dump(family, udp, func(s Socket) {
						if ports[s.Port] {
							sockets = append(sockets, s)
						}
					})
				}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the sockets of network namespace %s: %w", ns.ID(), err)
	}
	return sockets, nil
}

type diag struct {
	fd  int
	seq uint32
	buf []byte
}

// dump asks for all sockets of a family and protocol (struct inet_diag_req_v2).
func (d *diag) dump(family byte, udp bool, each func(Socket)) error {
	proto, state := byte(unix.IPPROTO_TCP), stateListen
	if udp {
		proto, state = unix.IPPROTO_UDP, stateClose
	}
	d.seq++
	req := make([]byte, unix.NLMSG_HDRLEN+reqSize)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(req[8:], d.seq)
	body := req[unix.NLMSG_HDRLEN:]
	body[0], body[1] = family, proto
	binary.NativeEndian.PutUint32(body[4:], 1<<state)
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
		if done, err := d.messages(d.buf[:n], udp, each); done || err != nil {
			return err
		}
	}
}

// messages reads the messages of one packet, and reports whether the last of the dump was among them.
func (d *diag) messages(text []byte, udp bool, each func(Socket)) (done bool, err error) {
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
			if s, ok := parse(body, udp); ok {
				each(s)
			}
		}
		text = text[min(len(text), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false, nil
}

// parse reads a struct inet_diag_msg and its attributes.
func parse(body []byte, udp bool) (s Socket, ok bool) {
	if len(body) < msgSize {
		return s, false
	}
	s.UDP, s.Port = udp, binary.BigEndian.Uint16(body[4:])
	switch body[0] {
	case unix.AF_INET:
		s.Addr = netip.AddrFrom4([4]byte(body[8:]))
	case unix.AF_INET6:
		s.Addr = netip.AddrFrom16([16]byte(body[8:]))
	default:
		return s, false
	}
	for attrs := body[msgSize:]; len(attrs) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofRtAttr || size > len(attrs) {
			break
		}
		if binary.NativeEndian.Uint16(attrs[2:]) == skV6Only && size > unix.SizeofRtAttr {
			s.V6Only = attrs[unix.SizeofRtAttr] != 0
		}
		attrs = attrs[min(len(attrs), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return s, true
}
