package main

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect/ambient"
)

// forward takes a connection to where it was to go.
func (p *pod) forward(client *net.TCPConn, way way) {
	defer func() { _ = client.Close() }()
	in := bufio.NewReader(client)
	to, err := originalDst(client)
	if way == tunnel {
		to, err = connectTo(in)
	}
	if err != nil || to.String() == client.LocalAddr().String() { // nobody was redirected here
		return
	}
	dialer := net.Dialer{Control: control, Timeout: 10 * time.Second}
	if way != outbound {
		dialer.LocalAddr = &net.TCPAddr{IP: client.RemoteAddr().(*net.TCPAddr).IP}
	}
	var server net.Conn
	if err := p.ns.Do(func() (err error) {
		server, err = dialer.Dial("tcp", to.String())
		return err
	}); err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = server.Close() }()
	log.Printf("%s %s -> %s", way, client.RemoteAddr(), to)
	if way == tunnel {
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
	}
	var both sync.WaitGroup
	both.Go(func() { pipe(server.(*net.TCPConn), in) })
	both.Go(func() { pipe(client, server) })
	both.Wait()
}

// connectTo reads the request of another proxy, which says where to. A mesh has HTTP/2 and certificates here, and asks both who the
// client is.
func connectTo(in *bufio.Reader) (netip.AddrPort, error) {
	request, err := http.ReadRequest(in)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if request.Method != http.MethodConnect {
		return netip.AddrPort{}, fmt.Errorf("%s instead of %s", request.Method, http.MethodConnect)
	}
	return netip.ParseAddrPort(request.Host)
}

// pipe copies until the end, and passes the end on.
func pipe(to *net.TCPConn, from io.Reader) {
	_, _ = io.Copy(to, from)
	_ = to.CloseWrite()
}

// control sets up each socket before it is bound.
func control(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		for _, o := range [][3]int{
			{unix.SOL_SOCKET, unix.SO_MARK, ambient.ProxyMark},
			{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1},
			{unix.SOL_IP, unix.IP_TRANSPARENT, 1}, // for both families: addresses that are not the pod's
		} {
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), o[0], o[1], o[2]))
		}
	})
	return errors.Join(err, failed)
}

// originalDst asks connection tracking where a redirected connection was to go.
func originalDst(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	ipv4, level := conn.LocalAddr().(*net.TCPAddr).IP.To4() != nil, unix.SOL_IPV6
	if ipv4 {
		level = unix.SOL_IP
	}
	var got *unix.IPv6MTUInfo // the kernel writes a sockaddr_in or sockaddr_in6, for which this has room
	if failed := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptIPv6MTUInfo(int(fd), level, unix.SO_ORIGINAL_DST) }); failed != nil || err != nil {
		return netip.AddrPort{}, cmp.Or(failed, err)
	}
	addr := netip.AddrFrom16(got.Addr.Addr)
	if ipv4 { // the address is where sockaddr_in6 has the flow
		addr = netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, got.Addr.Flowinfo)))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, got.Addr.Port))), nil
}
