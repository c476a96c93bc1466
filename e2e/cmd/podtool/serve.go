package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
)

// The ports that a proxy of Istio's kind has for what is redirected to it.
const (
	outboundPort = 15001
	inboundPort  = 15006
	dnsPort      = 15053
)

// proxy answers at a proxy's ports with where the connection was to go, and DNS
// queries with an address that no other server gives.
func proxy(transparent bool) error {
	if err := serve("proxy", outboundPort, false); err != nil {
		return err
	}
	if err := serve("proxy", inboundPort, transparent); err != nil {
		return err
	}
	// On loopback, which is where a redirected query arrives: the answer has to leave
	// from there for connection tracking to know it.
	for _, loopback := range []string{"127.0.0.1", "::1"} {
		conn, err := net.ListenPacket("udp", net.JoinHostPort(loopback, strconv.Itoa(dnsPort)))
		if err != nil && loopback == "::1" {
			continue // there is no IPv6
		}
		if err != nil {
			return err
		}
		go answerUDP(conn)
	}
	return dnsTCP()
}

// answerUDP answers queries until the socket is closed.
func answerUDP(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(answer(buf[:n]), from)
	}
}

// dnsTCP answers queries with TCP, for ever.
func dnsTCP() error {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(dnsPort))
	if err != nil {
		return err
	}
	go accept(l, answerTCP)
	return wait()
}

// answerTCP answers one query.
func answerTCP(conn net.Conn) {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	reply := answer(query)
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
}

// web serves HTTP: 200 to every request, with the address of who asks.
func web(port string) error {
	server := &http.Server{
		Addr: ":" + port, ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprintln(w, "peer="+r.RemoteAddr) }),
	}
	l, err := net.Listen("tcp", server.Addr)
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(l) }()
	return nil
}

// answer is the query with one address record: 192.0.2.53.
func answer(query []byte) []byte {
	if len(query) < 12 {
		return nil
	}
	reply := append([]byte{}, query...)
	reply[2], reply[3] = 0x81, 0x80                                // an answer without error
	binary.BigEndian.PutUint16(reply[6:], 1)                       // one record
	reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4) // for the name in the query, type A
	return append(reply, 192, 0, 2, 53)
}

// serve answers connections at a port of all addresses with "NAME:PORT orig=ADDRESS:PORT peer=ADDRESS", where orig is
// where the connection was to go before it was redirected. Transparent takes connections to addresses that are not the
// pod's, too, for which it needs CAP_NET_ADMIN.
func serve(name string, port uint16, transparent bool) error {
	var config net.ListenConfig
	if transparent {
		config.Control = setTransparent
	}
	l, err := config.Listen(context.Background(), "tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return err
	}
	go accept(l, func(conn net.Conn) {
		peer, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		_, _ = fmt.Fprintf(conn, "%s:%d orig=%s peer=%s\n", name, port, ownsock.DstBeforeNAT(conn.(*net.TCPConn)), peer.Addr().Unmap())
	})
	return nil
}

// setTransparent lets a socket of both families, before it is bound, take what is addressed to others.
func setTransparent(_, _ string, raw syscall.RawConn) (err error) {
	if errRaw := raw.Control(func(fd uintptr) {
		err = errors.Join(
			os.NewSyscallError("setsockopt IP_TRANSPARENT", unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)),
			os.NewSyscallError("setsockopt IPV6_TRANSPARENT", unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)))
	}); errRaw != nil {
		return errRaw
	}
	return err
}

// accept has each connection answered by a goroutine of its own, until the listener is closed.
func accept(l net.Listener, talk func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			talk(conn)
		}()
	}
}
