package netnstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/netnsexec"
)

// serve starts the world's three servers.
func (w *World) serve() error {
	o := w.opts
	for _, s := range []server{
		{w.Pod, "proxy", owner{o.ProxyUID, o.ProxyGID}, o.ProxyTCP, o.ProxyUDP, o.TransparentPort, o.ProxyMark, nil},
		{w.Pod, "app", owner{appID, appID}, appInbound, []uint16{5000}, 0, 0, nil},
		{w.Out, "out", owner{}, []uint16{80, 443, 53, 8080, 9090, 3306, 6379, 15008, 7070}, []uint16{53, 5353, 8125}, 0, 0, nil},
	} {
		if o.Echo {
			s.echo = newEcho(w.tb)
		}
		if err := s.ns.Do(func() error { return w.listen(s) }); err != nil {
			return fmt.Errorf("listen as %s: %w", s.who, err)
		}
	}
	return nil
}

// server answers on ports of all addresses.
type server struct {
	ns          *netnsexec.NetNS
	who         string
	owner       owner
	tcp, udp    []uint16
	transparent uint16 // one of tcp, or 0
	mark        uint32
	echo        *echo // nil: it hangs up once it has said what it is
}

// listen opens the sockets in the calling thread's namespace. They are closed when the test ends.
func (w *World) listen(s server) error {
	restore, err := ownsock.Become(s.owner.UID, s.owner.GID)
	if err != nil {
		return err
	}
	defer restore()
	for _, family := range []struct {
		name, wildcard              string
		level, transparent, pktinfo int
	}{
		{"4", "0.0.0.0", unix.SOL_IP, unix.IP_TRANSPARENT, unix.IP_PKTINFO},
		{"6", "[::]", unix.SOL_IPV6, unix.IPV6_TRANSPARENT, unix.IPV6_RECVPKTINFO},
	} {
		for _, port := range s.tcp {
			var config net.ListenConfig
			config.SetMultipathTCP(false)
			options := []option{{unix.SOL_SOCKET, unix.SO_MARK, int(s.mark)}}
			if port == s.transparent {
				options = append(options, option{family.level, family.transparent, 1})
			}
			config.Control = set(options...)
			l, err := config.Listen(context.Background(), "tcp"+family.name, fmt.Sprintf("%s:%d", family.wildcard, port))
			if err != nil {
				return err
			}
			w.background(l, func() { s.answerTCP(l.(*net.TCPListener), port) })
		}
		for _, port := range s.udp {
			config := net.ListenConfig{Control: set(option{unix.SOL_SOCKET, unix.SO_MARK, int(s.mark)}, option{family.level, family.pktinfo, 1})} // see answerUDP
			conn, err := config.ListenPacket(context.Background(), "udp"+family.name, fmt.Sprintf("%s:%d", family.wildcard, port))
			if err != nil {
				return err
			}
			w.background(conn, func() { s.answerUDP(conn.(*net.UDPConn), port) })
		}
	}
	return nil
}

// option is one of a socket, with its value.
type option struct{ level, name, value int }

// set returns a control function of a socket that sets options.
func set(options ...option) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) (err error) {
		errRaw := raw.Control(func(fd uintptr) {
			for _, o := range options {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), o.level, o.name, o.value))
			}
		})
		return errors.Join(errRaw, err)
	}
}

// background runs f, which ends when c is closed: with the test.
func (w *World) background(c io.Closer, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	w.tb.Cleanup(func() {
		_ = c.Close()
		<-done
	})
}

// answerTCP sends on each connection who accepted it and where it wanted to go. The thread has the server's UID and GID: a
// connection belongs to whoever accepts it, and so do its answers for rules that look at the owner.
func (s server) answerTCP(l *net.TCPListener, port uint16) {
	if s.owner != (owner{}) { // all threads are root's
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if restore, err := ownsock.Become(s.owner.UID, s.owner.GID); err == nil { // as when the socket was opened
			defer restore()
		}
	}
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		line := fmt.Sprintf("%s:%d orig=%s", s.who, port, ownsock.DstBeforeNAT(conn))
		if s.echo != nil {
			s.echo.serve(conn, line)
			continue
		}
		_, _ = conn.Write([]byte(line + "\n")) // the client notices errors
		_ = conn.Close()
	}
}

// answerUDP answers datagrams from the address that they were sent to, which a wildcard socket does not do by itself.
func (s server) answerUDP(conn *net.UDPConn, port uint16) {
	answer := fmt.Appendf(nil, "%s:%d/udp", s.who, port)
	raw, err := conn.SyscallConn()
	for err == nil {
		err = raw.Read(func(fd uintptr) (done bool) {
			return !errors.Is(answerDatagram(int(fd), answer, s.echo != nil), unix.EAGAIN)
		})
	}
}

func answerDatagram(fd int, answer []byte, echo bool) error {
	var buf [2 * messageSize]byte
	oob := make([]byte, 128)
	size, n, _, from, err := unix.Recvmsg(fd, buf[:], oob, unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	var source []byte
	for _, m := range messages {
		switch { // in_pktinfo ends with the address, in6_pktinfo begins with it (ip(7), ipv6(7))
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])})
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			source = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])})
		}
	}
	if echo {
		answer = append(saysPeer(string(answer), ownsock.AddrPort(from).Addr()), buf[:size]...)
	}
	_, _ = unix.SendmsgN(fd, answer, source, from, unix.MSG_DONTWAIT)
	return nil
}
